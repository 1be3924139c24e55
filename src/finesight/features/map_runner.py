"""Run images through the backbone of an encoder: by torch, or by onnxruntime where that is faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from finesight.features.onnx_maps import OnnxMaps, find_faster
from finesight.io.console import console
from finesight.nn.backbone import Backbone, MapOutput

BATCH, BATCH_PIXELS = 32, 16 * 224 * 224  # images and pixels that go through the network at once on the CPU


class MapRunner:
    """Computes the feature maps of normalized views, which are taken to the device of the backbone.

    ``exact`` and ``joint_masks`` (whether masks depend on the batch) forbid what changes the last bits of a map.
    """

    def __init__(self, backbone: Backbone, *, exact: bool, joint_masks: bool) -> None:
        self.backbone, self.exact, self.joint_masks = backbone, exact, joint_masks
        self.half_type: torch.dtype | None = None  # the type of half precision that maps are computed in
        self._onnx: OnnxMaps | None = None

    @property
    def device(self) -> torch.device:
        return next(self.backbone.parameters()).device

    @property
    def may_round(self) -> bool:
        """Whether a map may differ in its last bits from what the network itself gives."""
        return self.device.type == "cpu" and not (self.exact or self.joint_masks)

    @property
    def uses_onnx(self) -> bool:
        """Whether ``try_onnx`` found onnxruntime to be faster."""
        return self._onnx is not None

    def batch_size(self, pixels: int) -> int:
        """Return how many images of so many pixels go through the network at once on the CPU."""
        return 1 if self.exact else max(1, min(BATCH, BATCH_PIXELS // pixels))

    def try_onnx(self, resolution: int, *, earlier: bool, progress: bool) -> None:
        """Take onnxruntime from now on, if it is there and faster; ``earlier`` asks it for the earlier map too."""
        batch = self.batch_size(resolution * resolution)
        self._onnx, ratio = find_faster(self.backbone, resolution, batch, earlier=earlier)
        if progress:
            engine = "torch" if self._onnx is None else "onnxruntime"
            beside = (
                f"onnxruntime is {ratio:.2f} times as fast as torch here" if ratio else "onnxruntime cannot be used"
            )
            console.print(f"Embedding by {engine}: {beside}.")

    def outputs(
        self, views: Tensor, *, attention: bool = False, earlier: bool = False, tokens: bool = True
    ) -> MapOutput:
        """Return φ, the class token of networks that have one, and what it attends to and the earlier map if asked for.

        Without ``tokens`` the maps alone, which onnxruntime gives too.
        """
        return next(self.run([views], attention=attention, earlier=earlier, tokens=tokens))

    def run(
        self, batches: Sequence[Tensor], *, attention: bool = False, earlier: bool = False, tokens: bool = False
    ) -> Iterator[MapOutput]:
        """Yield what ``outputs`` returns for each batch; all batches must have views of one size."""
        rounds = self.may_round and not torch.is_grad_enabled()
        onnx = None if tokens or not rounds or self.half_type is not None else self._onnx
        if onnx is not None and not onnx.fits(batches[0], earlier=earlier):  # it looks through all weights: once
            onnx = None
        for views in batches:
            if onnx is not None:
                yield onnx(views)
            else:
                yield self._by_torch(views.to(self.device), rounds, attention, earlier, tokens)

    def _by_torch(self, views: Tensor, folded: bool, attention: bool, earlier: bool, tokens: bool) -> MapOutput:
        with self._autocast():
            if not (tokens or earlier):
                output = MapOutput(self.backbone(views, folded=folded))
            else:
                output = self.backbone.outputs(views, folded=folded, attention=attention, earlier=earlier)
        beside = (None if x is None else x.float() for x in (output.class_token, output.attention, output.earlier))
        return MapOutput(output.phi.float(), *beside)

    def _autocast(self) -> AbstractContextManager[object]:
        return nullcontext() if self.half_type is None else torch.autocast(self.device.type, self.half_type)
