"""Where the map φ is in what a timm model gives, and which image sizes the model takes.

Models give a map (N, C, H, W), the same with the channels last, or tokens: one vector for each patch of the image,
often after a class token and registers. What a model does is found by running it on the meta device, which computes
shapes only.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import timm
import torch
from torch import Tensor, nn

from finesight.errors import FineSightError
from finesight.nn.class_attention import AttentionCatcher, has_class_attention
from finesight.nn.signs import gives_signed

EXAMPLES = "for example resnet50, convnext_tiny, vit_small_patch14_dinov2 or swin_tiny_patch4_window7_224"
PLAIN_STRIDE = 32  # leaves a model as it is, whatever its own is
_MULTIPLES = (1, 2, 4, 7, 8, 14, 16, 28, 32, 64)  # of pixels, tried in this order
_LEAST = 128  # pixels of the smallest image that is tried


@dataclass(frozen=True)
class Sides:
    """The sides of square images, in pixels, that a model takes: multiples of a number, or one side only."""

    multiple: int = 1
    fixed: bool = False

    def nearest(self, pixels: int) -> int:
        """Return the side nearest to ``pixels``."""
        return self.multiple if self.fixed else max(1, round(pixels / self.multiple)) * self.multiple

    def at_least(self, pixels: int) -> int:
        """Return the smallest side that is not below ``pixels``; the one side of a model that takes no other."""
        return self.multiple if self.fixed else -(-pixels // self.multiple) * self.multiple

    def take(self, *pixels: int) -> bool:
        """Return whether images with these sides can be used."""
        return all(side == self.multiple if self.fixed else side % self.multiple == 0 for side in pixels)

    @property
    def words(self) -> str:
        if self == Sides():
            return "images of any size"
        return f"images of {self.multiple} px only" if self.fixed else f"sides that are multiples of {self.multiple} px"

    def problem(self, name: str, pixels: int) -> str:
        """Return what is wrong with a side that is not taken, and which ones to take instead."""
        below = max(self.multiple, pixels // self.multiple * self.multiple)
        near = {self.multiple} if self.fixed else {below, pixels // self.multiple * self.multiple + self.multiple}
        choice = " or ".join(str(side) for side in sorted(near))
        return f"'{name}' takes {self.words}, not {pixels}: take {choice} px."


ANY_SIDE = Sides()


@dataclass(frozen=True)
class FeatureMap:
    """How φ (N, C, H, W) is made of what ``forward_features`` gives."""

    layout: Literal["NCHW", "NHWC", "tokens"]
    channels: int
    stride: int  # pixels from cell to cell
    sides: Sides
    prefix: int = 0  # tokens before those of the patches: class, distillation and register tokens
    signed: bool = False  # it has negative values that count: of tokens, and of maps that do not end in an activation
    class_token: bool = False  # the first of the prefix is one
    attention: bool = False  # and what it attends to in the last block can be had

    def __call__(self, given: Tensor, images: Tensor) -> Tensor:
        """Return φ of ``images`` (N, 3, R, S): the map, or the patches' tokens in their places."""
        if self.layout == "NCHW":
            return given
        if self.layout == "NHWC":
            return given.permute(0, 3, 1, 2)
        return self._in_places(given[:, self.prefix :].transpose(1, 2), images)  # (N, P + HW, C) -> (N, C, HW)

    def attended(self, catcher: AttentionCatcher, images: Tensor) -> Tensor:
        """Return the caught attention of the class token to each patch, the mean over the heads. -> (N, H, W)"""
        return self._in_places(catcher.class_weights().mean(1)[:, self.prefix :], images)

    def _in_places(self, patches: Tensor, images: Tensor) -> Tensor:
        """Put patches into rows and columns. (..., HW) -> (..., H, W)"""
        rows, columns = images.shape[2] // self.stride, images.shape[3] // self.stride
        return patches.reshape(*patches.shape[:-1], rows, columns)


@dataclass(frozen=True)
class MapModel:
    """A timm model by its name, what it must be built with, and what of it φ does not need."""

    name: str
    options: tuple[tuple[str, Any], ...]  # of timm.create_model
    map: FeatureMap
    unused: tuple[str, ...]  # children with weights that are never called

    def build(self) -> nn.Module:
        """Return the model with random weights."""
        model: nn.Module = timm.create_model(self.name, pretrained=False, **dict(self.options))
        return model

    def ghost(self) -> Any:
        """Return the used part of the model on the meta device; ``called`` has its modules in the order of one pass."""
        ghost = _ghost(self.name, dict(self.options))
        for name in self.unused:
            setattr(ghost, name, nn.Identity())
        with torch.no_grad():
            ghost.forward_features(_images(self.map.sides.at_least(_LEAST)))
        return ghost


@cache
def find_map(name: str, output_stride: int = PLAIN_STRIDE) -> MapModel:
    """Return how a timm model gives φ.

    Raises
    ------
    FineSightError
        If there is no such model, it gives no map, or it cannot have this output stride.
    """
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"Did you mean {', '.join(near)}?" if near else f"Take a timm model, {EXAMPLES}."
        raise FineSightError(f"unknown backbone '{name}'. {hint}")
    if output_stride != PLAIN_STRIDE:
        try:
            found = _many_sizes(name, options := {"output_stride": output_stride}, _ghost(name, options))
        except Exception:  # models that do not take the argument say so in their own ways
            found = None
        found = found or find_map(name)
        if found.map.stride != output_stride:
            own = find_map(name).map
            cells = f"its patches are {own.stride} px" if own.layout == "tokens" else f"its cells are {own.stride} px"
            raise FineSightError(
                f"'{name}' cannot do output stride {output_stride}: {cells}. Leave out --output-stride, or use a "
                "backbone that can, for example resnet50 or convnext_tiny."
            )
        return found
    try:
        ghost = _ghost(name, {})
    except Exception as error:  # TypeError, AssertionError, RuntimeError: as each model likes
        raise FineSightError(f"timm cannot build '{name}': {error}") from error
    if found := _many_sizes(name, {}, ghost):
        return found
    for option, value in (("dynamic_img_size", True), ("strict_img_size", False)):  # of ViT; of Swin in older timm
        try:
            flexible = _ghost(name, {option: value})
        except TypeError:  # an option that this model does not have
            continue
        if found := _many_sizes(name, {option: value}, flexible):
            return found
    side = Sides(_own_side(ghost), fixed=True)
    shapes = {side.multiple: _shape(ghost, side.multiple)}
    if found_map := _read(ghost, shapes, side):
        return _model(name, {}, ghost, found_map)
    raise FineSightError(f"'{name}' {_reason(ghost, side.multiple)}. Take another timm model, {EXAMPLES}.")


def _many_sizes(name: str, options: dict[str, Any], ghost: Any) -> MapModel | None:
    """Return the model built so if it takes images of many sizes, with the smallest multiple of pixels."""
    shapes: dict[int, Shape | None] = {}  # by the side of the image
    for multiple in dict.fromkeys((*_MULTIPLES, _own_side(ghost))):
        least = Sides(multiple).at_least(_LEAST)
        for side in (least + multiple, least, 2 * least):
            if side not in shapes:
                shapes[side] = _shape(ghost, side)
            if shapes[side] is None:
                break
        else:
            tried = {side: shapes[side] for side in (least, least + multiple, 2 * least)}
            if found := _read(ghost, tried, Sides(multiple)):
                return _model(name, options, ghost, found)
            if not all(shape is not None and len(shape) == 3 for shape in tried.values()):
                return None  # other multiples give no other kind of map
    return None


Shape = tuple[int, ...]


def _shape(ghost: Any, side: int) -> Shape | None:
    """Return the shape of what the model gives for an image: () if it is not one tensor, None if it fails."""
    try:
        with torch.no_grad():
            given = ghost.forward_features(_images(side))
    except Exception:  # models tied to other sizes fail in their own ways
        return None
    return tuple(given.shape) if isinstance(given, Tensor) else ()


def _ghost(name: str, options: dict[str, Any]) -> Any:
    """Return the model on the meta device; ``called`` are those of its modules that have been called, in order."""
    ghost: Any
    options = {"num_classes": 0, **options}
    with torch.random.fork_rng(devices=()):
        try:
            with torch.device("meta"):
                ghost = timm.create_model(name, **options).eval()
        except (NotImplementedError, RuntimeError):  # it computes something when it is built
            ghost = timm.create_model(name, **options).to("meta").eval()
    ghost.called = {}
    for module in ghost.modules():
        module.register_forward_hook(lambda module, *_: ghost.called.setdefault(module))
    return ghost


def _own_side(model: Any) -> int:
    side: int = model.pretrained_cfg.get("input_size", (3, 224, 224))[-1]
    return side


def _model(name: str, options: dict[str, Any], ghost: Any, found: FeatureMap) -> MapModel:
    idle = {name: child for name, child in ghost.named_children() if ghost.called.keys().isdisjoint(child.modules())}
    unused = tuple(name for name, child in idle.items() if any(True for _ in child.parameters()))
    if unused and found.layout != "NCHW":
        # a part may be used without being called, as rotary position embeddings are: its weights have a gradient
        images = _images(found.sides.at_least(_LEAST))
        with torch.enable_grad():
            total = found(ghost.forward_features(images), images).sum()
            unused = tuple(child for child in unused if not _has_gradient(total, idle[child]))
    return MapModel(name, tuple({"num_classes": 0, **options}.items()), _describe(ghost, found), unused)


def _describe(ghost: Any, found: FeatureMap) -> FeatureMap:
    """Return the map with what its values and the tokens beside it are."""
    images = _images(side := found.sides.at_least(_LEAST))
    if found.layout != "tokens":
        return replace(found, signed=found.layout == "NHWC" or gives_signed(ghost, images))
    if not (found.prefix and any("cls_token" in name for name, _ in ghost.named_parameters())):
        return replace(found, signed=True)
    tokens = found.prefix + (side // found.stride) ** 2
    return replace(found, signed=True, class_token=True, attention=has_class_attention(ghost, images, tokens))


def _has_gradient(total: Tensor, module: nn.Module) -> bool:
    gradients = torch.autograd.grad(total, list(module.parameters()), retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in gradients)


def _read(model: Any, shapes: dict[int, Shape | None], sides: Sides) -> FeatureMap | None:
    """Return how φ is read from what the model gives, by the sides of images; None if it is not the same for all."""
    if not all(shapes.values()):
        return None
    known = {side: shape for side, shape in shapes.items() if shape}
    channels, small, large = int(model.num_features), min(known), max(known)
    kinds: dict[str, tuple[int, int, int]] = {"NCHW": (1, 2, 3), "NHWC": (3, 1, 2)}
    for layout, (channel, row, column) in kinds.items():
        if all(len(s) == 4 and s[channel] == channels and s[row] == s[column] for s in known.values()):
            rows = known[large][row] - (0 if sides.fixed else known[small][row])
            if rows > 0:
                pixels = large - (0 if sides.fixed else small)
                return FeatureMap("NCHW" if layout == "NCHW" else "NHWC", channels, round(pixels / rows), sides)
    if not all(len(s) == 3 and s[2] == channels for s in known.values()):
        return None
    count, prefix = known[small][1], getattr(model, "num_prefix_tokens", None)
    if prefix is None:  # not said: a class token is the one that is left over
        prefix = count - math.isqrt(count) ** 2
        if prefix > 1:
            return None
    cells = math.isqrt(max(count - prefix, 0))
    stride = small // cells if cells > 1 else small + 1
    fits = all(side % stride == 0 and s[1] == prefix + (side // stride) ** 2 for side, s in known.items())
    return FeatureMap("tokens", channels, stride, sides, prefix) if fits else None


def _reason(ghost: Any, side: int) -> str:
    """Return why a model cannot be used, for people."""
    shape = _shape(ghost, side)
    if shape is None:
        return f"cannot be run by timm on images of {side} px"
    if shape == ():
        return "gives several maps or sequences of tokens, not one map of the image"
    if len(shape) == 3 and shape[1] <= max(1, getattr(ghost, "num_prefix_tokens", 0) or 0):
        return "gives the class token alone: its map cannot be had from timm"
    return f"gives no map of local features (N, C, H, W), but {shape} for an image of {side} px"


def _images(side: int) -> Tensor:
    return torch.empty(1, 3, side, side, device="meta")
