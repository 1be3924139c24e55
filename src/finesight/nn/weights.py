"""Weights from a file or from timm's hub: names are matched, counted, and a bad match is an error.

A file is only ever read as tensors (safetensors, or a pickle in torch's ``weights_only`` mode), so one from
anywhere can be tried: nothing in it is run.
"""

import pickle
import re
import threading
from itertools import product
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import get_session  # type: ignore[attr-defined]
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from finesight.errors import FineSightError

PICKLED = (".pth", ".pt", ".tar", ".bin")
SUFFIXES = (".safetensors", *PICKLED)
MIN_MATCHED = 0.9

# What others wrap around a network's own names: DataParallel and torch.compile, then its role in training
# (MoCo v1/v2 `encoder_q`, v3 `base_encoder`), then FineSight's own `backbone.model`. Momentum copies
# (`encoder_k`, `momentum_encoder`) are left out on purpose.
_PREFIXES = tuple(
    "".join(parts)
    for parts in product(
        ("", "module.", "_orig_mod.", "model."),
        ("", "encoder_q.", "base_encoder.", "backbone.", "encoder."),
        ("", "model."),
    )
)
_CLASSIFIER = ("fc.", "head.", "classifier.")


def load_weights(model: nn.Module, file: str | Path) -> str:
    """Load ``file`` into ``model`` and return how well its names matched, e.g. "265 of 265 tensors matched …".

    Raises
    ------
    FineSightError
        If the file cannot be read, under 90 % of the tensors matched, or one has another shape.
    """
    path = weight_file(file)
    target, tensors = model.state_dict(), _read_state(path)
    wanted = [name for name in target if not name.endswith("num_batches_tracked")]
    prefix = max(_PREFIXES, key=lambda prefix: sum(prefix + name in tensors for name in wanted))  # that fits best
    state = {key[len(prefix) :]: tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    found, missing = ([name for name in wanted if (name in state) == there] for there in (True, False))
    reshaped = [name for name in found if state[name].shape != target[name].shape]
    if reshaped:
        shapes = [f"{n} {tuple(state[n].shape)} instead of {tuple(target[n].shape)}" for n in reshaped]
        raise FineSightError(
            f"weights '{path}': {len(reshaped)} tensors have another shape than the model's: {_some(shapes)}. "
            f"Is it for another backbone?"
        )
    if len(found) < MIN_MATCHED * len(wanted):
        others = [n for n in state if n not in wanted and not n.endswith("num_batches_tracked")]
        unexpected = [n for n in others if not n.startswith(_CLASSIFIER)]
        raise FineSightError(
            f"weights '{path}': only {len(found)} of the model's {len(wanted)} tensors matched. "
            f"Missing: {_some(missing)}. Unexpected: {_some(unexpected)}. Is it for another backbone?"
        )

    loadable = {k: v.to(target[k].dtype) for k, v in state.items() if k in target and v.shape == target[k].shape}
    model.load_state_dict(loadable, strict=False)
    left = f"; not in the file, left random: {_some(missing)}" if missing else ""
    return f"{len(found)} of {len(wanted)} tensors matched ({_convention(prefix, state)}){left}"


def is_caffe_style(file: str | Path) -> bool:
    """Return whether a safetensors file says of itself that its ResNet strides in the 1×1 convolutions."""
    path = weight_file(file)
    if path.suffix.lower() != ".safetensors":
        return False
    with _open_safetensors(path) as opened:
        return str((opened.metadata() or {}).get("style", "")).lower().startswith("caffe")


def weight_file(file: str | Path) -> Path:
    """Return the path of a weight file that exists and has a known suffix, or raise ``FineSightError``."""
    path = Path(file).expanduser()
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise FineSightError(f"weights '{file}': {found}. Give `imagenet`, `random`, or a weight file.")
    if path.suffix.lower() not in SUFFIXES:
        raise FineSightError(
            f"weights '{file}': '{path.suffix}' is not a weight file FineSight reads. It reads {', '.join(SUFFIXES)}."
        )
    return path


def imagenet_model(name: str, *, hub_seconds: float = 10.0, **options: Any) -> nn.Module:
    """Return the timm model with its pretrained weights; fail after ``hub_seconds`` when the hub is out of reach."""
    source = timm.get_pretrained_cfg(name)
    if source is None or not source.has_weights:
        raise FineSightError(
            f"timm has no pretrained weights for '{name}'. Use --weights random or --weights FILE, or another backbone."
        )
    reason = _hub_problem(source, hub_seconds)
    if reason is None:
        try:
            model: nn.Module = timm.create_model(name, pretrained=True, **options)
            return model
        except Exception as error:  # whatever the hub's client raises, the user's way out is the same
            reason = _first_line(error)
    raise FineSightError(
        f"the ImageNet weights of '{name}' could not be fetched from the hub ({reason}). "
        f"Without a connection use --weights random, or --weights FILE with a weight file you have "
        f"({', '.join(SUFFIXES)})."
    )


def _hub_problem(source: Any, seconds: float) -> str | None:
    """Return why the hub cannot serve these weights, or None. The hub's own client would retry for a minute.

    The request runs in a thread because name lookup has no time limit.
    """
    if _is_cached(source):
        return None
    url = hf_hub_url(source.hf_hub_id, "model.safetensors") if source.hf_hub_id else source.url
    answer = [f"no answer within {seconds:.0f} s from {url}"]

    def ask() -> None:
        try:
            status = get_session().head(url, timeout=seconds / 2).status_code
            # 404: the hub is there, and this model's file has another name
            answer[0] = "" if status < 400 or status == 404 else f"{url} answered {status}"
        except Exception as error:
            answer[0] = f"{url}: {_first_line(error)}"

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0] or None


def _is_cached(source: Any) -> bool:
    if not source.hf_hub_id:
        return Path(torch.hub.get_dir(), "checkpoints", Path(source.url).name).is_file()
    names = (source.hf_hub_filename, "model.safetensors", "pytorch_model.bin")
    return any(isinstance(try_to_load_from_cache(source.hf_hub_id, name), str) for name in names if name)


def _read_state(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file; those of a checkpoint are in its ``state_dict`` or ``model``."""
    if path.suffix.lower() == ".safetensors":
        with _open_safetensors(path) as opened:
            content = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a dict)
    else:
        content = _read_pickle(path)
    state = content
    while isinstance(state, dict) and not any(isinstance(value, Tensor) for value in state.values()):
        inner = next((state[key] for key in ("state_dict", "model") if key in state), None)
        if inner is None:
            break
        state = inner
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)} if isinstance(state, dict) else {}
    if not tensors:
        held = _some([str(key) for key in content]) if isinstance(content, dict) else type(content).__name__
        raise FineSightError(f"weights '{path}': no weight tensors in it (found: {held}).")
    return tensors


def _open_safetensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise FineSightError(
            f"weights '{path}': not a readable safetensors file ({_first_line(error)}). Is the download complete?"
        ) from error


def _read_pickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file can fail in any way
        reason = _first_line(error)
        if isinstance(error, pickle.UnpicklingError):  # torch's own message advises to trust the file
            wanted = re.search(r"GLOBAL (\S+)", str(error))
            reason = f"it asks for `{wanted[1]}`" if wanted else "not tensors alone"
        raise FineSightError(
            f"weights '{path}': not a plain weight file ({reason}). Nothing in it was run. "
            f"Save only the state dict, best as .safetensors."
        ) from error


def _convention(prefix: str, state: dict[str, Tensor]) -> str:
    if "encoder_q." in prefix:
        return "MoCo names"
    # timm kept torchvision's names for its plain ResNets
    plain = "torchvision names" if {"conv1.weight", "layer1.0.conv1.weight"} <= state.keys() else "timm names"
    return f"{plain} after '{prefix}'" if prefix else plain


def _some(names: list[str], count: int = 3) -> str:
    more = f", … ({len(names)} in all)" if len(names) > count else ""
    return (", ".join(names[:count]) or "none") + more


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
