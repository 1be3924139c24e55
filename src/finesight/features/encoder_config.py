"""What an encoder's folder says about it: enough to build it again without the run."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from finesight.data.geometry import CROP_PCT, MAX_SIDE, CropMode, Framing, Interpolation
from finesight.data.views import IMAGENET_MEAN, IMAGENET_STD
from finesight.features.encoder_folder import CHECKSUM
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.feature_map import find_map
from finesight.nn.pooling_config import PoolingName
from finesight.nn.poolings import EARLIER_WEIGHT
from finesight.rationale.config import RationaleConfig

FORMAT = 1


class EncoderConfig(BaseModel):
    """Enough to build the encoder again without the run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: int = FORMAT
    method: str
    resolution: int = Field(ge=1, le=MAX_SIDE)
    pooling: PoolingName
    backbone: BackboneConfig
    rationale: RationaleConfig | None = None
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: Interpolation = "bilinear"
    crop_pct: float = Field(CROP_PCT, gt=0, le=1)
    crop_mode: CropMode = "center"
    earlier_weight: float = Field(EARLIER_WEIGHT, ge=0)  # of the earlier map, in poolings of two maps

    @property
    def framing(self) -> Framing:
        """How a picture becomes the view that the network sees."""
        return Framing(self.resolution, self.crop_pct, self.interpolation, self.crop_mode)


def read_config(file: Path) -> tuple[EncoderConfig, str | None]:
    """Read a configuration and the checksum of its weights, None in files of earlier versions.

    Raises ``OSError``, ``RecursionError`` or ``ValueError`` if there is none.

    Files that do not say whether φ is signed are of versions that took no map for it. They had no transformers, of
    which all maps are.
    """
    content = json.loads(file.read_text())
    checksum = content.pop(CHECKSUM, None) if isinstance(content, dict) else None
    config = EncoderConfig.model_validate(content)
    if config.format != FORMAT:
        raise ValueError(f"it has format {config.format}, and this version reads {FORMAT}")
    backbone = config.backbone
    if backbone.signed is not None:
        return config, checksum
    signed = find_map(backbone.name, backbone.output_stride).map.layout != "NCHW"
    return config.model_copy(update={"backbone": backbone.model_copy(update={"signed": signed})}), checksum
