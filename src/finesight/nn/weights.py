"""Weights for a model from a file, a folder or a hub: names are matched, counted, and a bad match is an error."""

import logging
from collections import Counter
from pathlib import Path

from torch import nn

from finesight.errors import FineSightError
from finesight.nn.backbone_config import is_hub_name
from finesight.nn.weight_files import local_file, open_safetensors, read_tensors, some
from finesight.nn.weight_hub import hub_file, imagenet_model
from finesight.nn.weight_match import CLASSIFIER, match_names, wanted_names

__all__ = ["imagenet_model", "is_caffe_style", "load_weights", "weight_file"]

MIN_MATCHED = 0.9
# a transformer with one of these left random computes nothing of use, however many others matched
_VITAL = ("patch_embed.", "pos_embed", "cls_token", "reg_token")
log = logging.getLogger("finesight.weights")


def load_weights(model: nn.Module, file: str | Path, *, hub_seconds: float = 10.0) -> str:
    """Load ``file`` into ``model`` and return how well its names matched, e.g. "265 of 265 tensors matched …".

    The names may be those of timm, torchvision, Hugging Face, open_clip, or of the code of MoCo, BYOL, DINO, DINOv2
    and DINOv3. The log ``finesight.weights`` lists every tensor that was not used, at level INFO.

    Raises
    ------
    FineSightError
        If the file cannot be read, under 90 % of the tensors matched, one has another shape, or the file's network
        has parts that the model has not.
    """
    path = weight_file(file, hub_seconds=hub_seconds)
    match = match_names(model, read_tensors(path))
    target, wanted, state = model.state_dict(), wanted_names(model), match.state
    found, missing = ([name for name in wanted if (name in state) == there] for there in (True, False))
    reshaped = [name for name in found if state[name].shape != target[name].shape]
    if reshaped:
        shapes = [f"{n} {tuple(state[n].shape)} instead of {tuple(target[n].shape)}" for n in reshaped]
        raise FineSightError(
            f"weights '{path}': {len(reshaped)} tensors have another shape than the model's: {some(shapes)}. "
            f"Is it for another backbone?"
        )
    vital = [name for name in missing if name.startswith(_VITAL)]
    if len(found) < MIN_MATCHED * len(wanted) or vital:
        others = [n for n in state if n not in wanted and not n.endswith("num_batches_tracked")]
        unexpected = [n for n in others if not n.startswith(CLASSIFIER)]
        raise FineSightError(
            f"weights '{path}': only {len(found)} of the model's {len(wanted)} tensors matched. "
            f"Missing: {some(vital or missing)}. Unexpected: {some(unexpected)}. Is it for another backbone?"
        )
    if match.foreign:
        raise FineSightError(
            f"weights '{path}': the network in it has {len(match.foreign)} tensors that the model has no place for: "
            f"{some(match.foreign)}. Is it for another backbone?"
        )

    model.load_state_dict(
        {n: t.to(target[n].dtype) for n, t in state.items() if n in target and t.shape == target[n].shape},
        strict=False,
    )
    log.info("weights '%s': tensors that were not used: %s", path, ", ".join(match.unused) or "none")
    report = f"{len(found)} of {len(wanted)} tensors matched ({match.names})"
    if match.resampled:
        report += f"; resampled: {some(match.resampled)}"
    if missing:
        report += f"; not in the file, left random: {some(missing)}"
    unused = [name for name in match.unused if not any(f".{part}" in f".{name}" for part in CLASSIFIER)]
    return report + (f"; not used: {_groups(unused)}" if unused else "")


def is_caffe_style(file: str | Path) -> bool:
    """Return whether a safetensors file says of itself that its ResNet strides in the 1×1 convolutions."""
    if is_hub_name(str(file)):
        return False  # no library saves its models so, and asking must need no network
    path = local_file(file)
    if path.suffix.lower() != ".safetensors":
        return False
    with open_safetensors(path) as opened:
        return str((opened.metadata() or {}).get("style", "")).lower().startswith("caffe")


def weight_file(file: str | Path, *, hub_seconds: float = 10.0) -> Path:
    """Return the path of a weight file that exists and has a known suffix, or raise ``FineSightError``.

    ``hf-hub:NAME`` and ``timm/NAME`` are fetched first unless they are in the cache.
    """
    return hub_file(str(file), hub_seconds) if is_hub_name(str(file)) else local_file(file)


def _groups(names: list[str], count: int = 5) -> str:
    """Return the names, as many as are under one roof in one word if they are more than a few."""
    for depth in range(max(name.count(".") for name in names) + 1, 0, -1):
        groups = Counter(".".join(name.split(".")[:depth]) for name in names)
        if len(groups) <= count:
            break
    return some([f"{group} ({size} tensors)" if size > 1 else group for group, size in groups.items()], count)
