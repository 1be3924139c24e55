"""A backbone run by onnxruntime where that is faster than torch, found by a short trial that is remembered.

Depthwise convolutions and small activations (MobileNet, EfficientNet) gain most; ResNets gain about a tenth.
torch.compile is no candidate: it was slower than onnxruntime for every network measured (docs/performance.md).
"""

from __future__ import annotations

import io
import platform
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from finesight.data.remembered import ENGINES, Remembered
from finesight.features.gpu import weight_state
from finesight.nn.backbone import Backbone, MapOutput
from finesight.nn.earlier_map import two_maps

MANY = 500  # images that are worth a trial
WORTH = 1.05  # so many times as fast as torch it must be: making the session takes as long as some 30 images
ROUNDS, MOST_ROUNDS = 3, 12  # of the trial: more than the least where other programs disturb it
AGREE = 1.1  # the two fastest rounds of a way may differ by this factor
TOLERANCE = 1e-5


class OnnxMaps:
    """The feature maps of a backbone with the weights it has now, for views of one size."""

    def __init__(self, backbone: Backbone, resolution: int, *, earlier: bool = False) -> None:
        import onnxruntime

        self.earlier = earlier  # whether the map of the stage before the last one is given too
        self.shape = (3, resolution, resolution)
        self._backbone, self._state = backbone, weight_state(backbone)
        content = io.BytesIO()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Features(backbone, earlier=earlier).eval(),
                (torch.zeros(2, *self.shape),),
                content,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=17,
                input_names=["views"],
                dynamic_axes={"views": {0: "batch"}},
            )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(content.getvalue(), options, providers=["CPUExecutionProvider"])

    def fits(self, views: Tensor, *, earlier: bool = False) -> bool:
        """Return whether it can be asked: for maps it gives of views of its size, while the weights are the same."""
        given = views.shape[1:] == self.shape and self.earlier >= earlier
        return given and self._state == weight_state(self._backbone)

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the encoder is without: its weights may go another way

    def __call__(self, views: Tensor) -> MapOutput:
        phi, *before = map(torch.from_numpy, self._session.run(None, {"views": views.contiguous().numpy()}))
        return MapOutput(phi, earlier=before[0] if before else None)


class _Features(nn.Module):
    def __init__(self, backbone: Backbone, *, earlier: bool) -> None:
        super().__init__()
        self.model, self.map = backbone.model, backbone.map
        self.earlier = backbone.earlier if earlier else None

    def forward(self, views: Tensor) -> tuple[Tensor, ...]:
        if self.earlier is None:
            return (self.map(self.model.forward_features(views), views),)
        given, before = two_maps(self.model, views, self.earlier)
        return self.map(given, views), before


def find_faster(
    backbone: Backbone, resolution: int, batch: int, *, earlier: bool = False
) -> tuple[OnnxMaps | None, float]:
    """Return the backbone in onnxruntime, or None if torch is hardly slower; and how many times as fast it is.

    That is 0 if onnxruntime or onnx is missing, the network cannot be exported, or its maps differ. ``batch`` images
    at a time are tried, as they will come: torch is slower with fewer. ``earlier`` asks for the earlier map too.
    """
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return None, 0.0
    versions = f"torch {torch.__version__} onnxruntime {onnxruntime.__version__} onnx {onnx.__version__}"
    kind = backbone.config.model_copy(update={"weights": "", "freeze": 0}).model_dump_json()
    where = f"{platform.node()} {platform.machine()} {torch.get_num_threads()} threads"
    key = f"{kind} {batch} of {resolution} px{', two maps' if earlier else ''}, {where}, {versions}"
    trials = Remembered(ENGINES)
    known = trials.read()
    if known.get(key, WORTH) < WORTH:
        return None, known[key]
    maps = None
    try:
        maps = OnnxMaps(backbone, resolution, earlier=earlier)
        ratio = known[key] if key in known else _trial(backbone, maps, batch)
    except Exception:  # exporter and runtime raise errors of many kinds; torch can do all of it
        ratio = 0.0
    if key not in known:
        trials.keep(key, ratio)
    return (maps if ratio >= WORTH else None), ratio


@torch.no_grad()
def _trial(backbone: Backbone, maps: OnnxMaps, batch: int) -> float:
    """Return how many times as fast it is, by turns; 0 if the maps differ."""
    views = torch.rand(batch, *maps.shape, generator=torch.Generator().manual_seed(0)) * 4 - 2

    def by_torch() -> MapOutput:
        return backbone.outputs(views, folded=True, earlier=maps.earlier)

    expected, found = by_torch(), maps(views)
    for wanted, got in ((expected.phi, found.phi), (expected.earlier, found.earlier)):
        if wanted is not None and got is not None and not (got - wanted).norm() <= TOLERANCE * wanted.norm():
            return 0.0
    slow: list[float] = []
    fast: list[float] = []
    while len(slow) < ROUNDS or (len(slow) < MOST_ROUNDS and not (_agree(slow) and _agree(fast))):
        slow.append(_seconds(by_torch))
        fast.append(_seconds(lambda: maps(views)))
    return min(slow) / min(fast)  # other programs only add time


def _agree(seconds: list[float]) -> bool:
    best, second, *_ = sorted(seconds)
    return second <= AGREE * best


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
