"""The backbone of an encoder as the timm model that it is, and as a weight file that timm loads."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timm
import torch
from torch import nn

from finesight.errors import FineSightError
from finesight.io.atomic import atomic_path, require_writable
from finesight.io.tensors import save_tensors
from finesight.nn.feature_map import find_map

if TYPE_CHECKING:
    from finesight.features.encoder import Encoder

TOLERANCE = 1e-5  # relative; of φ by the file and by the encoder
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class TimmFile:
    """A weight file for timm, and the options of ``timm.create_model`` that make its network."""

    file: Path
    name: str
    options: dict[str, Any]
    bytes: int
    difference: float  # of φ from the encoder's, relative
    untrained: tuple[str, ...] = ()  # tensors after φ, which the encoder has not: as timm initializes them

    @property
    def call(self) -> str:
        """The Python call that loads the file."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"timm.create_model({self.name!r}, checkpoint_path={str(self.file)!r}{options})"

    def summary(self) -> dict[str, Any]:
        """Return the numbers for ``--json``."""
        facts = {"file": str(self.file), "bytes": self.bytes, "model": self.name, "options": self.options}
        return {**facts, "difference": self.difference, "untrained": list(self.untrained), "call": self.call}


def timm_model(encoder: Encoder) -> nn.Module:
    """Return a copy of the backbone: a timm model without a classifier, in eval mode, its LoRA updates merged.

    ``forward_features`` gives what φ is made of. Caffe strides and dilation are kept. ``timm.data`` reads mean, size
    and crop of the encoder from ``pretrained_cfg``.
    """
    config = encoder.config
    model: Any = copy.deepcopy(encoder.backbone.merged().model).eval()
    own = {
        "input_size": (3, config.resolution, config.resolution),
        "mean": config.mean,
        "std": config.std,
        "interpolation": config.interpolation,
        "crop_pct": config.crop_pct,
        "crop_mode": config.crop_mode,
        "num_classes": 0,
    }
    known = {name: value for name, value in model.pretrained_cfg.items() if not name.startswith("test_")}
    model.pretrained_cfg = {**known, **own}
    plain: nn.Module = model
    return plain


def export_timm(encoder: Encoder, out: str | Path) -> TimmFile:
    """Write the backbone's weights such that ``timm.create_model(NAME, checkpoint_path=out, num_classes=0)`` loads all.

    The file is loaded by timm and compared with the encoder before it gets its name. What timm's network has after φ,
    as the last norm of ConvNeXt, the encoder does not keep: ``untrained`` names it. A network that timm builds only in
    another form (caffe strides, cells made smaller without dilation) is a ``FineSightError``.
    """
    out, backbone = Path(out), encoder.backbone.config
    check_timm_target(out)
    if backbone.stride_in_1x1:
        raise FineSightError(
            f"timm builds '{backbone.name}' with its strides in the 3×3 convolutions, and this encoder has caffe "
            "strides: the weights would load and compute something else. Use encoder.to_timm() in Python."
        )
    if not backbone.dilate and backbone.output_stride != 32:
        raise FineSightError(
            f"timm dilates '{backbone.name}' at output stride {backbone.output_stride}, and this encoder does not: the "
            "weights would load and compute something else. Use encoder.to_timm() in Python."
        )
    model: Any = timm_model(encoder)
    state = model.state_dict()
    options, missing = _options(backbone.name, backbone.output_stride, set(state))
    if missing:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            fresh = timm.create_model(backbone.name, **options).state_dict()
        state |= {name: fresh[name] for name in missing}
    with atomic_path(out) as scratch:
        save_tensors(state, scratch)
        loaded: Any = timm.create_model(backbone.name, checkpoint_path=str(scratch), **options).eval()
        side = encoder.config.resolution
        views = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0)) * 4 - 2
        with torch.no_grad():
            expected, found = model.forward_features(views), loaded.forward_features(views)
        difference = float((found - expected).norm() / expected.norm())
        if not difference <= TOLERANCE:
            raise FineSightError(
                f"timm computes something else with these weights (off by {difference:.1e}): {out} is not written."
            )
    return TimmFile(out, backbone.name, options, out.stat().st_size, difference, tuple(sorted(missing)))


def check_timm_target(out: Path) -> None:
    """Raise ``FineSightError`` if ``out`` is no place for a weight file."""
    if out.suffix.lower() != SUFFIX:
        raise FineSightError(f"{out} must end in {SUFFIX}: timm reads weights from such files.")
    if not out.absolute().parent.is_dir():
        raise FineSightError(f"The folder {out.absolute().parent} does not exist.")
    require_writable(out)


def _options(name: str, output_stride: int, tensors: set[str]) -> tuple[dict[str, Any], set[str]]:
    """Return what timm must be told so that its model has these tensors, and which others it has then: few or none."""
    own = dict(find_map(name, output_stride).options)
    found: list[tuple[dict[str, Any], set[str]]] = []
    tried: tuple[dict[str, Any], ...] = ({}, {"global_pool": ""}, {"global_pool": "avg"})
    for more in tried:
        try:
            with torch.device("meta"):
                wanted = set(timm.create_model(name, **own, **more).state_dict())
        except (TypeError, NotImplementedError, RuntimeError, AssertionError):
            continue  # options that this network does not take
        if tensors <= wanted:
            found.append(({**own, **more}, wanted - tensors))
    if not found:
        raise FineSightError(f"timm cannot build '{name}' with the weights of this encoder: use encoder.to_timm().")
    return min(found, key=lambda one: len(one[1]))
