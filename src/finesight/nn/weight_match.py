"""Finds which tensors of a file are which of a model's, whatever library named them."""

import contextlib
import inspect
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from finesight.nn.weight_layouts import LAYOUTS

CLASSIFIER = ("fc.", "head.", "classifier.", "heads.")
# what torch wraps around modules for compiling, sharding and checkpointing, in the middle of names too
_WRAPPERS = re.compile(r"(^|\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# a second network of a file, when there is one without these words: the moving average of MoCo and BYOL, the student
# of DINO
_SECOND = re.compile(r"encoder_k|momentum|target|student|_ema")
_CHUNK = re.compile(r"(^|\.)blocks\.\d+\.(\d+)\.")  # DINOv2 and DINOv3 in training: chunks of blocks, numbered through
_TOKENS = re.compile(r"(?:reg|register|storage|dist|cls)_tokens?|pos_embed")
_COMPUTED = re.compile(r"mask|rope|periods|freqs|relative_(?:position_index|coords_table)|num_batches_tracked")
# layouts that timm converts by itself, and by which names they are known
_SIGNS = (
    ("DINOv3", {"storage_tokens"}),
    ("DINOv2", {"register_tokens"}),
    ("DINOv2", {"mask_token", "blocks.0.ls1.gamma"}),
    ("open_clip", {"visual.class_embedding"}),
    ("open_clip", {"module.visual.class_embedding"}),
    ("facebookresearch ConvNeXt", {"downsample_layers.0.0.weight"}),
    ("microsoft Swin", {"layers.0.downsample.reduction.weight"}),
    ("torchvision", {"conv1.weight", "layer1.0.conv1.weight"}),  # timm kept them for its plain ResNets
)
_TIMM_FILTERS = ("checkpoint_filter_fn", "_filter_fn", "_filter_torchvision_pretrained")


@dataclass(frozen=True)
class Match:
    """Tensors of a file under a model's names."""

    names: str  # whose names they were, e.g. "timm names after 'module.'"
    state: dict[str, Tensor]
    unused: list[str]  # the file's other names
    resampled: list[str]  # what was interpolated, e.g. "pos_embed (1, 197, 384) to (1, 50, 384)"
    foreign: list[str]  # parts of the file's network that the model has not


def wanted_names(model: nn.Module) -> list[str]:
    """Return the names of the tensors that a file should have."""
    return [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]


def match_names(model: nn.Module, tensors: dict[str, Tensor]) -> Match:
    """Return the tensors as the layout has them that gives the model the most; the model is not changed."""
    # Tensors that record what is made of them: at the end it is known which were used, however they were converted.
    leaves = {name: t.detach().requires_grad_(t.is_floating_point()) for name, t in tensors.items()}
    target, wanted = model.state_dict(), wanted_names(model)
    best: tuple[int, str, dict[str, Tensor], dict[str, Tensor]] = (-1, "", {}, {})
    with torch.enable_grad():
        for names, state, converted in _candidates(model, wanted, leaves):
            fitting = sum(name in converted and converted[name].shape == target[name].shape for name in wanted)
            if fitting > best[0]:
                best = (fitting, names, state, converted)
            if fitting == len(wanted):
                break
    _, names, state, converted = best
    keys = {id(leaf): key for key, leaf in leaves.items()}
    origins = {name: _origins(tensor) & keys.keys() for name, tensor in converted.items()}
    used = {leaf for name in converted.keys() & target.keys() for leaf in origins[name]}
    resampled = [
        f"{name} {_shape(tensors[keys[next(iter(origins[name]))]])} to {_shape(tensor)}"
        for name, tensor in converted.items()
        if name in target and len(origins[name]) == 1 and _is_resampled(tensor, leaves[keys[next(iter(origins[name]))]])
    ]
    parts = {name for name, child in model.named_children() if any(True for _ in child.parameters())}
    foreign = [
        name
        for name, tensor in {**state, **converted}.items()
        if (_TOKENS.fullmatch(name) or (name.split(".")[0] in parts and not name.startswith(CLASSIFIER)))
        and not _COMPUTED.search(name)
        and used.isdisjoint(_origins(tensor))
        and _counts(tensor.detach(), state.get(f"{name}_mask"))
    ]
    return Match(
        names,
        {name: tensor.detach() for name, tensor in converted.items()},
        [key for leaf, key in keys.items() if leaf not in used and not key.endswith("num_batches_tracked")],
        resampled,
        foreign,
    )


_Candidate = tuple[str, dict[str, Tensor], dict[str, Tensor]]


def _candidates(model: nn.Module, wanted: list[str], tensors: dict[str, Tensor]) -> Iterator[_Candidate]:
    """Yield title, tensors under a layout's names and under the model's, for every layout that the file may have.

    Those of the model's own names come first, without and with timm's conversion.
    """
    in_one_row = any(re.fullmatch(r"blocks\.\d+\.norm1\.weight", name) for name in wanted)
    plain = {}
    for name, tensor in tensors.items():
        name = _WRAPPERS.sub(r"\1", name)
        plain[_CHUNK.sub(r"\1blocks.\2.", name) if in_one_row else name] = tensor
    target = model.state_dict()
    own = _own_prefix(wanted, plain)
    state = _below(own, plain)
    title = _own_title(own, state)
    yield title, state, state
    yield from ((title, state, converted) for converted in _by_timm(model, state))
    for layout in LAYOUTS:
        for prefix in sorted(layout.prefixes(list(plain)), key=_is_second):
            renamed = layout.convert(_below(prefix, plain))
            title = f"{layout.title} names" + (f" after '{prefix}'" if prefix else "")
            for converted in (renamed, *_by_timm(model, renamed)):
                yield title, renamed, {n: _squeezed_to(t, target.get(n)) for n, t in converted.items()}


def _own_prefix(wanted: list[str], tensors: dict[str, Tensor]) -> str:
    """Return what stands before most of the model's own names, e.g. ``module.encoder_q.``."""
    names = set(wanted)
    counts = Counter({"": 0})
    for key in tensors:
        parts = key.split(".")
        for cut in range(len(parts)):
            if ".".join(parts[cut:]) in names:
                counts["".join(f"{part}." for part in parts[:cut])] += 1
    return max(counts, key=lambda prefix: (counts[prefix], not _is_second(prefix), -len(prefix)))


def _own_title(prefix: str, state: dict[str, Tensor]) -> str:
    if "encoder_q." in prefix:
        return "MoCo names"
    title = next((title for title, signs in _SIGNS if signs <= state.keys()), "timm")
    return f"{title} names after '{prefix}'" if prefix else f"{title} names"


def _by_timm(model: nn.Module, state: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the state as timm's own conversion for this family of models makes it, if there is one that can."""
    home = sys.modules[type(model).__module__]
    function: Callable[..., dict[str, Tensor]] | None = next(
        (getattr(home, name) for name in _TIMM_FILTERS if hasattr(home, name)), None
    )
    if function is None:
        return []
    parameters = inspect.signature(function).parameters
    options = {"adapt_layer_scale": True} if "adapt_layer_scale" in parameters else {}
    state = dict(state)  # it may take some out
    if "register_tokens" in state:  # by this one timm knows DINOv2
        state.setdefault("mask_token", torch.zeros(1))
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):  # it fails in its own ways
        return [function(state, model, **options) if len(parameters) > 1 else function(state)]
    return []


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _is_second(prefix: str) -> bool:
    return _SECOND.search(prefix) is not None


def _squeezed_to(tensor: Tensor, target: Tensor | None) -> Tensor:
    """Return the tensor in the target's shape where they differ in dimensions of size 1 only."""
    if target is None or tensor.squeeze().shape != target.squeeze().shape:
        return tensor
    return tensor.reshape(target.shape)


def _origins(tensor: Tensor) -> set[int]:
    """Return the ids of the tensors that this one was computed from, or its own."""
    if tensor.grad_fn is None:
        return {id(tensor)}
    found, seen, waiting = set(), {tensor.grad_fn}, [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        following = {function for function, _ in node.next_functions if function is not None} - seen
        seen |= following
        waiting.extend(following)
    return found


def _is_resampled(tensor: Tensor, origin: Tensor) -> bool:
    """Return whether the values are others, and not only a part of them or in another shape."""
    return tensor.untyped_storage().data_ptr() != origin.untyped_storage().data_ptr() and tensor.shape != origin.shape


def _counts(tensor: Tensor, mask: Tensor | None) -> bool:
    """Return whether leaving a tensor out changes anything; DINOv3 masks the bias of the key."""
    return bool((tensor if mask is None else tensor[mask.detach() != 0]).any())


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
