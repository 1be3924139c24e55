"""The bench's pictures: scores over K, and the paper's Figure 1, where MoCo v2 and LCR look."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from finesight.bench.engine import Bench
from finesight.bench.networks import finished
from finesight.bench.profiles import Profile
from finesight.bench.results import Results
from finesight.bench.systems import SYSTEMS
from finesight.bench.table import CURVE, OURS, values
from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.encoder import Encoder
from finesight.methods.moco import MoCo, info_nce
from finesight.rationale.gradcam import pooled_gradcam
from finesight.report.figures import KCurve, attention_overlays, k_curves
from finesight.report.run_report import pixels
from finesight.training.checkpoints import load_checkpoint
from finesight.training.module import TrainingModule
from finesight.training.run import RunFolder

SEED = 0  # whose networks are looked at
BIRDS = 8
BASELINES = ("moco-v2", "moco-v2-energy-gem")
GRADCAM, ENERGY, MASK = "MoCo v2:\nGradCAM of its loss", "MoCo v2:\nchannel energy", "LCR:\nmask"


def k_figure(profile: Profile, results: Results) -> bytes:
    """Rank-1 and mAP over K, LCR's own K among the others, beside what MoCo v2 gives without any."""
    return k_curves([_k_panel(profile, results, metric) for metric in ("rank-1", "mAP")])


def _k_panel(profile: Profile, results: Results, metric: str) -> KCurve:
    points = {k: values(results.get(name, {}), metric) for k, name in (CURVE | {own_k(profile): OURS}).items()}
    baselines = {SYSTEMS[name].words: values(results.get(name, {}), metric) for name in BASELINES}
    return KCurve(points, baselines, f"{metric} (%)")


def own_k(profile: Profile) -> int:
    """Of the row LCR itself; the others were fitted beside it."""
    rationale = profile.config(OURS, data="", weights="random", seed=SEED).rationale
    assert rationale is not None
    return rationale.projections


def attention_figure(bench: Bench) -> bytes | None:
    """The same test birds through MoCo v2 and LCR; None before both are trained.

    The left map is what LCR's branch is taught, the right one what it makes of it.
    """
    moco, lcr = bench.run("moco-v2", SEED), bench.run("lcr", SEED)
    if not (finished(moco) and finished(lcr)):
        return None
    theirs, ours = Encoder.load(moco.root), Encoder.load(lcr.root)
    cache = _few_birds(bench, ours)
    views = ours.view(*cache.batch(np.arange(len(cache))))
    gradcam = loss_gradcam(moco, theirs, views)
    columns = {} if gradcam is None else {GRADCAM: gradcam}
    columns |= {ENERGY: theirs.encode(views, ()).masks["energy"], MASK: ours.encode(views, ()).masks["rationale"]}
    rows = [[values[i].numpy() for values in columns.values()] for i in range(len(views))]
    return attention_overlays([pixels(ours, view) for view in views], rows, list(columns))


def _few_birds(bench: Bench, encoder: Encoder) -> DecodedCache:
    source = bench.source()
    if bench.profile.classes is not None:
        source = source.first_classes(bench.profile.classes)
    source = source.split("test")
    assert source.labels is not None
    return open_cache(
        source.select(spaced_over_classes(source.labels, BIRDS)),
        cache_side(encoder.config.resolution),
        cache_dir=bench.runtime.cache_dir,
        workers=bench.runtime.workers,
        progress=False,
    )


def spaced_over_classes(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The first image of each of ``count`` classes, evenly spaced from the first class to the last."""
    classes, first = np.unique(labels, return_index=True)
    spaced = np.linspace(0, len(classes) - 1, min(count, len(classes))).round().astype(int)
    return np.asarray(first[spaced], np.int64)


def loss_gradcam(run: RunFolder, encoder: Encoder, views: Tensor) -> Tensor | None:
    """|gᵀφ| of the contrastive loss as the run's last step left it; None when no checkpoint is left. -> (N, H, W)

    Of the network as it was trained, without the initial weights its encoder may have mixed in. The query is the view,
    its key the same view flipped, the negatives are the queue's: nothing is drawn by lot, so the picture is the same
    every time.
    """
    found = load_checkpoint(run.checkpoints)
    if found is None:
        return None
    objective = _module(run, encoder, found[1]["module"]).objective
    assert isinstance(objective, MoCo)
    with torch.no_grad():
        phi = objective.backbone(views)
        key = objective.key_head(objective.key_backbone(views.flip(3)).mean((2, 3)))
    pooled = phi.mean((2, 3)).requires_grad_()
    query = objective.head(pooled)
    unit = (normalize(query, dim=1), normalize(key, dim=1))
    loss, _, _ = info_nce(*unit, objective.queue.vectors, objective.config.temperature)
    return pooled_gradcam(phi, pooled, loss).detach().abs()


def _module(run: RunFolder, encoder: Encoder, state: dict[str, Tensor]) -> TrainingModule:
    """The training with its queue, in eval mode; the encoder's settings spare it the weight file."""
    config = run.config()
    size = len(state["objective.queue.vectors"])
    objective = config.objective.model_copy(update={"queue": size})
    config = config.model_copy(update={"backbone": encoder.config.backbone, "objective": objective})
    module = TrainingModule(config, images=size, steps_per_epoch=1, load_weights=False)
    module.load_state_dict(state)
    return module.eval()
