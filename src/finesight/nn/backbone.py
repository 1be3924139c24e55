"""``Backbone``: images → feature map φ, from any timm model that has one."""

import copy
import difflib
import re
from typing import Any, Self

import timm
import torch
from timm.models.resnet import Bottleneck
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from finesight.errors import FineSightError
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.weights import imagenet_model, is_caffe_style, load_weights

__all__ = ["Backbone", "BackboneConfig"]

_EXAMPLES = "for example resnet50, convnext_tiny, efficientnet_lite0 or regnetx_002"


class Backbone(nn.Module):
    """Computes φ (N, C, H, W) of normalized images, before any pooling; for ResNets after the last ReLU.

    ``output_stride`` 16 or 8 is timm's: the last stages lose their stride and their 3×3 convolutions are
    dilated instead (in a ResNet's first such block still by the dilation of the stage before), so that
    pretrained filters see the picture at the scale they were trained for. With ``dilate=False`` the stride is 1
    and nothing is dilated: a map of the same size and other values, cheaper and with less of the border's
    padding in it, for networks that start from random weights.

    ``load=False`` builds the network without weights, which come from a saved encoder or a checkpoint.
    ``config`` is the given one with ``stride_in_1x1`` decided: save that one, it needs no weight file.
    """

    def __init__(self, config: BackboneConfig, *, load: bool = True) -> None:
        super().__init__()
        model = _build(config)
        self.channels, self.stride, unused = _probe(model, config)
        if load and config.weights == "imagenet":
            model = imagenet_model(config.name, **_options(config))
        # A classifier that is never called would stall DDP, which waits for every parameter's gradient.
        for name in unused:
            setattr(model, name, nn.Identity())
        self.load_report = "weights not loaded"
        caffe = config.stride_in_1x1
        if load:
            reports = {"imagenet": "ImageNet weights from the timm hub", "random": "random weights"}
            self.load_report = reports.get(config.weights) or load_weights(model, config.weights)
        if caffe is None:
            caffe = config.weights not in ("imagenet", "random") and is_caffe_style(config.weights)
        self.config = config.model_copy(update={"stride_in_1x1": caffe})
        if self.config.stride_in_1x1:
            _move_stride_to_1x1(model, config.name)
        if not config.dilate:
            for conv in model.modules():
                if isinstance(conv, nn.Conv2d) and conv.dilation != (1, 1):
                    rows, columns = conv.kernel_size
                    conv.dilation, conv.padding = (1, 1), (rows // 2, columns // 2)
        self.model: Any = model.to(memory_format=torch.channels_last)
        for module in self._frozen():
            module.requires_grad_(False)
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        phi: Tensor = self.model.forward_features(images.contiguous(memory_format=torch.channels_last))
        return phi  # (N, 3, R, R) -> (N, C, R / stride, R / stride)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; frozen parts stay in eval mode, or their batch norms would still move their statistics."""
        super().train(mode)
        for module in self._frozen():
            module.eval()
        if self.config.frozen_norm:
            for module in self.model.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _frozen(self) -> list[nn.Module]:
        # looked up each time: converting to SyncBatchNorm replaces modules
        if self.config.freeze == 0:
            return []
        parts = _parts(self.model, self.config.name)
        if self.config.freeze > len(parts):
            raise FineSightError(
                f"'{self.config.name}' has a stem and {len(parts) - 1} stages: freeze can be at most "
                f"{len(parts)}, not {self.config.freeze}."
            )
        return [module for part in parts[: self.config.freeze] for module in part]


def _options(config: BackboneConfig) -> dict[str, Any]:
    # not every model takes output_stride, and 32 is what those that take it do anyway
    stride = {} if config.output_stride == 32 else {"output_stride": config.output_stride}
    return {"num_classes": 0, **stride}


def _build(config: BackboneConfig) -> nn.Module:
    if not timm.is_model(config.name):
        near = difflib.get_close_matches(config.name, timm.list_models(), n=3)
        hint = f"Did you mean {', '.join(near)}?" if near else f"Take a timm model, {_EXAMPLES}."
        raise FineSightError(f"unknown backbone '{config.name}'. {hint}")
    try:
        model: nn.Module = timm.create_model(config.name, pretrained=False, **_options(config))
        return model
    except Exception as error:  # TypeError, AssertionError, RuntimeError: as each model likes
        if config.output_stride == 32:
            raise FineSightError(f"timm cannot build '{config.name}': {error}") from error
        default = config.model_copy(update={"output_stride": 32})
        _probe(_build(default), default)  # a transformer is told that it is one, not that its stride is wrong
        raise _stride_error(config) from error


def _probe(model: nn.Module, config: BackboneConfig) -> tuple[int, int, list[str]]:
    """Return channels and stride of φ, and the top-level children that φ does not need.

    Runs the model on the meta device, which computes shapes only, with two sizes: the difference gives the stride
    also where convolutions without padding drop the border.
    """
    ghost: Any = copy.deepcopy(model).to("meta").eval()
    called: set[nn.Module] = set()
    for module in ghost.modules():
        module.register_forward_hook(lambda module, *_: called.add(module))
    try:
        small, large = (ghost.forward_features(torch.empty(1, 3, side, side, device="meta")) for side in (128, 256))
        channels, rows = small.shape[1], large.shape[2] - small.shape[2]
        fits = small.ndim == large.ndim == 4 and channels == large.shape[1] == model.num_features and rows > 0
    except Exception:  # models tied to one image size or to tokens fail in their own ways
        fits = False
    if not fits:
        raise FineSightError(
            f"'{config.name}' is not convolutional: no feature map (N, C, H, W) for images of any size. "
            f"Take a convolutional timm model, {_EXAMPLES}."
        )
    stride = round(128 / rows)
    if config.output_stride != 32 and stride != config.output_stride:
        raise _stride_error(config)
    unused = [name for name, child in ghost.named_children() if called.isdisjoint(child.modules())]
    return channels, stride, unused


def _stride_error(config: BackboneConfig) -> FineSightError:
    return FineSightError(
        f"'{config.name}' cannot do output stride {config.output_stride}. Use --output-stride 32, or a "
        f"backbone that can, {_EXAMPLES}."
    )


def _move_stride_to_1x1(model: nn.Module, name: str) -> None:
    """Move each stage's stride from its 3×3 convolution to its first 1×1, where Caffe's and Keras's ResNets have it.

    The weights have the same shapes, so the wrong network loads without an error and computes something else.
    """
    blocks = [module for module in model.modules() if isinstance(module, Bottleneck)]
    if not blocks or any(not isinstance(block.aa, nn.Identity) for block in blocks):
        raise FineSightError(
            f"stride-in-1x1 is for ResNets with bottleneck blocks (resnet50, resnet101, …), not for '{name}'."
        )
    for block in blocks:
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


def _parts(model: nn.Module, name: str) -> list[list[nn.Module]]:
    """Return the stem's modules, then each stage's, by the names of timm's families.

    These are layer1… (ResNet), s1… (RegNet), stages.0… (ConvNeXt), blocks.0… (EfficientNet).
    """
    stem: list[nn.Module] = []
    stages: list[list[nn.Module]] = []
    for child_name, child in model.named_children():
        if re.fullmatch(r"(layer|s)\d", child_name):
            stages.append([child])
        elif child_name in ("stages", "blocks") and not stages:
            stages = [[stage] for stage in child.children()]
        elif not stages:
            stem.append(child)
    if not stages or not any(True for module in stem for _ in module.parameters()):
        raise FineSightError(f"FineSight does not know the stages of '{name}': it can only be used with freeze 0.")
    return [stem, *stages]
