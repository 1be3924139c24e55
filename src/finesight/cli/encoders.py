"""The encoder that a command uses: that of a run, else a network as it is. Nothing heavy is imported at the top."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.errors import FineSightError

if TYPE_CHECKING:
    from finesight.features.encoder import Encoder

RunOption = Annotated[
    Path | None, typer.Option("--run", help="The folder of a finished run.  [default: a frozen network]")
]
FrozenBackbone = Annotated[
    str | None, typer.Option(help="Without a run: any timm model with a feature map.  [default: resnet50]")
]
FrozenWeights = Annotated[
    str | None,
    typer.Option(help="Without a run: imagenet, a weight file, hf-hub:NAME or timm/NAME.  [default: imagenet]"),
]
FrozenResolution = Annotated[
    int | None, typer.Option(help="Without a run: pixels.  [default: 224, or the nearest it takes]")
]


def open_encoder(run: Path | None, backbone: str | None, weights: str | None, resolution: int | None) -> Encoder:
    """Return the encoder of a run, or the network under the pooling that suits it best without training."""
    from finesight import api
    from finesight.features.encoder_folder import warn_of_random
    from finesight.io.console import console
    from finesight.nn.backbone_config import BackboneConfig
    from finesight.training.config import validate_settings
    from finesight.training.save_encoder import frozen_pooling

    given = {"--backbone": backbone, "--weights": weights, "--resolution": resolution}
    named = [option for option, value in given.items() if value is not None]
    if run is not None and named:
        raise FineSightError(f"--run brings its own network: leave {named[0]} away.")
    if run is not None:
        encoder = api.load(run)
    else:
        options = {"name": backbone, "weights": weights}
        settings = validate_settings(BackboneConfig, **{k: v for k, v in options.items() if v is not None})
        encoder = api.frozen(settings, resolution, frozen_pooling(settings.name))
        console.print(encoder.backbone.load_report)
    warn_of_random(encoder.config.method, encoder.config.backbone.weights)
    return encoder
