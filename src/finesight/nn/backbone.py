"""``Backbone``: images → feature map φ, from any timm model that has one."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from timm.models.resnet import Bottleneck
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from finesight.errors import FineSightError
from finesight.io.memory import keep_freed_memory
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.checkpointing import checkpoint_blocks, forward_pass
from finesight.nn.class_attention import AttentionCatcher
from finesight.nn.earlier_map import EarlierMap, find_earlier, two_maps
from finesight.nn.feature_map import find_map
from finesight.nn.fold import PROBE, FoldedModel
from finesight.nn.lora import add_lora, merge_lora, plain_name
from finesight.nn.parts import Parts, find_parts
from finesight.nn.poolings import ATTENTION, Pooling
from finesight.nn.weights import imagenet_model, is_caffe_style, load_weights

__all__ = ["Backbone", "BackboneConfig", "MapOutput"]


@dataclass(frozen=True)
class MapOutput:
    """What a backbone gives of N images."""

    phi: Tensor  # (N, C, H, W)
    class_token: Tensor | None = None  # (N, C), of networks that have one
    attention: Tensor | None = None  # (N, H, W) of the class token to the patches in the last block, if asked for
    earlier: Tensor | None = None  # (N, D, H', W') of the stage before the last one, if asked for


def joined(parts: Sequence[MapOutput]) -> MapOutput:
    """Return what was computed in parts as one."""
    names = [field.name for field in fields(MapOutput)]
    values = {name: [value for part in parts if (value := getattr(part, name)) is not None] for name in names}
    return MapOutput(**{name: torch.cat(found) for name, found in values.items() if found})


class Backbone(nn.Module):
    """Computes φ (N, C, H, W) of normalized images, before any pooling; for ResNets after the last ReLU.

    For vision transformers φ is the last block's tokens after the final norm, each in the place of its patch; class,
    distillation and register tokens are dropped. ``map`` says how φ is made and which image sizes can be used.

    ``output_stride`` 16 or 8 is timm's: the last stages lose their stride and their 3×3 convolutions are
    dilated instead (in a ResNet's first such block still by the dilation of the stage before), so that
    pretrained filters see the picture at the scale they were trained for. With ``dilate=False`` the stride is 1
    and nothing is dilated: a map of the same size and other values, cheaper and with less of the border's
    padding in it, for networks that start from random weights.

    ``load=False`` builds the network without weights, which come from a saved encoder or a checkpoint.
    ``config`` is the given one with ``stride_in_1x1`` and ``signed`` decided: save that one, it needs no weight file.
    """

    def __init__(self, config: BackboneConfig, *, load: bool = True) -> None:
        super().__init__()
        keep_freed_memory()
        found = find_map(config.name, config.output_stride)
        self.map, self.channels, self.stride = found.map, found.map.channels, found.map.stride
        model = found.build()
        if load and config.weights == "imagenet":
            model = imagenet_model(config.name, **dict(found.options))
        # A classifier that is never called would stall DDP, which waits for every parameter's gradient.
        for name in found.unused:
            setattr(model, name, nn.Identity())
        self.load_report = "weights not loaded"
        caffe = config.stride_in_1x1
        if load:
            reports = {"imagenet": "ImageNet weights from the timm hub", "random": "random weights"}
            self.load_report = reports.get(config.weights) or load_weights(model, config.weights)
        if caffe is None:
            caffe = config.weights not in ("imagenet", "random") and is_caffe_style(config.weights)
        self.signed = self.map.signed if config.signed is None else config.signed
        self.long_tokens = self.signed and self.map.layout != "NCHW"  # convolutional networks train as they always did
        self.config = config.model_copy(update={"stride_in_1x1": caffe, "signed": self.signed})
        if self.config.stride_in_1x1:
            _move_stride_to_1x1(model, config.name)
        if not config.dilate:
            for conv in model.modules():
                if isinstance(conv, nn.Conv2d) and conv.dilation != (1, 1):
                    rows, columns = conv.kernel_size
                    conv.dilation, conv.padding = (1, 1), (rows // 2, columns // 2)
        self.model: Any = model.to(memory_format=torch.channels_last)
        self._frozen_modules = self._freeze()
        if config.lora:
            self._add_lora()
        self._checkpointed, self._builds_graph = False, True
        self._fold()
        self.train()

    def _freeze(self) -> list[str]:
        """Freeze the first parts; return the names of the modules that have no other weights."""
        if self.config.freeze == 0:
            return []
        parts = self._known_parts("freeze 0")
        if self.config.freeze > len(parts):
            raise FineSightError(
                f"'{self.config.name}' has {parts.words}: freeze can be at most {len(parts)}, not {self.config.freeze}."
            )
        parameters = dict(self.model.named_parameters())
        frozen = {parameters[own] for part in parts.names[: self.config.freeze] for own in part}
        for parameter in frozen:
            parameter.requires_grad_(False)
        inside = {name: set(module.parameters()) for name, module in self.model.named_modules()}
        return [name for name, own in inside.items() if own and own <= frozen]

    def _add_lora(self) -> None:
        parts, config = find_parts(self.config.name), self.config
        if not parts.attention:
            raise FineSightError(
                f"backbone.lora is for networks with attention, such as vision transformers; '{config.name}' has none "
                "that LoRA can update. Leave it out."
            )
        layers = [layer for layer in parts.attention if self.model.get_submodule(layer).weight.requires_grad]
        if not layers:
            raise FineSightError(
                f"backbone.lora {config.lora} with freeze {config.freeze} trains nothing of '{config.name}', which has "
                f"{parts.words}: freeze fewer."
            )
        add_lora(self.model, layers, config.lora, config.lora_alpha or config.lora)

    def _fold(self, *, compiled: bool = False) -> None:
        side = self.map.sides.nearest(PROBE)
        self._folded = FoldedModel(self.model, side=side)
        self._partly_folded = FoldedModel(self.model, frozen_only=True, compiled=compiled, side=side)
        self._folded_two_maps: FoldedModel | None = None  # made when it is asked for

    def forward(self, images: Tensor, *, folded: bool = False) -> Tensor:
        """Return φ. ``folded`` norms give the same but for rounding, and faster; without gradients only.

        In training on a CPU, norms are folded where neither they nor the convolutions before them are trained. Images
        of a size that the model does not take raise ``FineSightError``.
        """
        return self.outputs(images, folded=folded).phi

    def outputs(
        self, images: Tensor, *, folded: bool = False, attention: bool = False, earlier: bool = False
    ) -> MapOutput:
        """Return φ as ``forward`` does, and of the same pass the class token and, if asked, what it attends to.

        ``earlier`` asks for the map of the stage before the last one too: ``FineSightError`` if there is none.
        """
        if self._builds_graph or not torch.is_grad_enabled() or self._partly_folded.compiled:
            return self._outputs(images, folded=folded, attention=attention, earlier=earlier)
        with torch.no_grad():
            output = self._outputs(images, folded=folded, attention=attention, earlier=earlier)
        return replace(output, phi=output.phi.detach().requires_grad_())

    def _outputs(self, images: Tensor, *, folded: bool, attention: bool, earlier: bool) -> MapOutput:
        if not torch.compiler.is_compiling():
            self.require_sides(*images.shape[2:])
        images = images.contiguous(memory_format=torch.channels_last)
        on_cpu = images.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        catcher = AttentionCatcher() if attention and self.map.attention else None
        before = None
        with catcher or nullcontext(), forward_pass() if self._checkpointed else nullcontext():
            if earlier:
                given, before = self._two_maps(images, folded=folded)
            elif folded:
                given = self._folded(images)
            elif self.training and (self._partly_folded.compiled or (on_cpu and self.config.freeze > 0)):
                given = self._partly_folded(images)
            else:
                given = self.model.forward_features(images)
        return MapOutput(
            self.map(given, images),  # (N, 3, R, R) -> (N, C, R / stride, R / stride)
            given[:, 0] if self.map.class_token else None,
            None if catcher is None else self.map.attended(catcher, images),
            before,
        )

    @contextmanager
    def without_graph(self) -> Iterator[None]:
        """Let φ be a leaf meanwhile: gradients reach it and what is made of it, but no weights. Its bits are the same.

        A compiled network builds its graph all the same: without one it would have to be compiled a second time.
        """
        self._builds_graph = False
        try:
            yield
        finally:
            self._builds_graph = True

    def _two_maps(self, images: Tensor, *, folded: bool) -> tuple[Tensor, Tensor]:
        if not folded:
            return two_maps(self.model, images, self.earlier)
        if self._folded_two_maps is None:
            self._folded_two_maps = FoldedModel(self.model, side=self._folded.side, earlier=self.earlier)
        made: tuple[Tensor, Tensor] = self._folded_two_maps(images)
        return made

    @property
    def earlier(self) -> EarlierMap:
        """The map of the stage before the last one; ``FineSightError`` if there is none."""
        return find_earlier(self.config.name, self.config.output_stride)

    def require_sides(self, *pixels: int) -> None:
        """Raise ``FineSightError`` if images with these sides cannot be used."""
        for side in pixels:
            if not self.map.sides.take(side):
                raise FineSightError(self.map.sides.problem(self.config.name, side))

    def require_pooling(self, pooling: Pooling) -> None:
        """Raise ``FineSightError`` if a pooling needs a class token, attention or an earlier map that is not there."""
        if pooling.needs_earlier:
            find_earlier(self.config.name, self.config.output_stride)
        if pooling.needs_class_token and not self.map.class_token:
            raise FineSightError(
                f"Pooling '{pooling.name}' needs a class token, and '{self.config.name}' has none. "
                "Take another pooling, or a vision transformer that has one (DINOv2, CLIP, DeiT, …)."
            )
        if pooling.mask == ATTENTION and not self.map.attention:
            raise FineSightError(
                f"Pooling '{pooling.name}' cannot be had from '{self.config.name}': its last block has not one plain "
                "attention of the class token to the patches. Take another pooling, class-token for example."
            )

    def compile_features(self) -> None:
        """Let torch.compile make what training calls: the first step takes a minute, the others less time."""
        self._fold(compiled=True)

    def checkpoint_activations(self) -> None:
        """Keep only what goes from block to block for the backward pass: less memory, more time, the same gradients.

        Raises ``FineSightError`` if timm cannot do so for this model.
        """
        checkpoint_blocks(self.model, self.config.name)
        self._fold()
        self._checkpointed = True

    def trained_parts(self) -> list[dict[str, nn.Parameter]]:
        """Return what learns in each part, stem first, by its names in ``model``."""
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        names = self._known_parts("optim.layer_decay 1").names
        return [{name: p for name, p in trained.items() if plain_name(name) in set(part)} for part in names]

    def _known_parts(self, else_with: str) -> Parts:
        parts, name = find_parts(self.config.name), self.config.name
        if not parts:
            raise FineSightError(
                f"FineSight does not know the stages of '{name}': it can only be used with {else_with}."
            )
        return parts

    def merged(self) -> Self:
        """Return the plain network with the updates of LoRA added to its weights; without LoRA the same one."""
        if not self.config.lora:
            return self
        plain = copy.deepcopy(self)
        merge_lora(plain.model)
        plain.config = self.config.model_copy(update={"lora": 0, "lora_alpha": None})
        plain._fold()
        return plain

    def train(self, mode: bool = True) -> Self:
        """Set the mode; frozen parts stay in eval mode, or their batch norms would still move their statistics."""
        super().train(mode)
        for name in self._frozen_modules:
            self.model.get_submodule(name).eval()
        if self.config.frozen_norm or self.config.lora:
            for module in self.model.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


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
