"""Figures of ``bench birds``: scores over K, and the paper's Figure 1, where MoCo v2 and LCR look."""

from __future__ import annotations

import numpy as np

from finesight.data.cache import DecodedCache, open_cache
from finesight.explain.inputs import spaced_over_classes
from finesight.explain.objective_cam import loss_gradcam
from finesight.features.encoder import Encoder, pixels
from finesight.paper.benchmark import Benchmark
from finesight.paper.profiles import Profile
from finesight.paper.rows import BIRD_ROWS, TRAININGS
from finesight.paper.runs import is_finished
from finesight.paper.scores import CURVE, OURS, values
from finesight.paper.store import Results
from finesight.plots.figures import KCurve, k_curves
from finesight.plots.sheets import attention_overlays

SEED = 0  # whose networks are looked at
BIRDS = 8
BASELINES = ("moco-v2", "moco-v2-energy-gem")
GRADCAM, ENERGY, MASK = "MoCo v2:\nGradCAM of its loss", "MoCo v2:\nchannel energy", "LCR:\nmask"


def k_figure(profile: Profile, results: Results) -> bytes:
    """Draw rank-1 and mAP over K, with LCR's own K, beside MoCo v2 which has none."""
    return k_curves([k_panel(profile, results, metric) for metric in ("rank-1", "mAP")])


def k_panel(profile: Profile, results: Results, metric: str) -> KCurve:
    """Return a metric of every K, and of the rows that have none."""
    points = {k: values(results.get(name, {}), metric) for k, name in (CURVE | {own_k(profile): OURS}).items()}
    baselines = {BIRD_ROWS[name].label: values(results.get(name, {}), metric) for name in BASELINES}
    return KCurve(points, baselines, f"{metric} (%)")


def own_k(profile: Profile) -> int:
    """Return K of the row LCR itself; the others were trained beside it."""
    rationale = profile.config(TRAININGS[OURS], data="", seed=SEED, given={"backbone.weights": "random"}).rationale
    assert rationale is not None
    return rationale.projections


def attention_figure(bench: Benchmark) -> bytes | None:
    """Draw the same test birds through MoCo v2 and LCR; return None before both are trained.

    The left map is what LCR's branch is taught, the right one what it predicts.
    """
    runs = [bench.run(training, SEED) for training in ("moco-v2", "lcr")]
    moco, lcr = (bench.folder(run) for run in runs if run is not None)
    if not (is_finished(moco) and is_finished(lcr)):
        return None
    theirs, ours = Encoder.load(moco.root), Encoder.load(lcr.root)
    cache = _few_birds(bench, ours)
    views = ours.cached_views(cache, np.arange(len(cache)))
    gradcam = loss_gradcam(moco, theirs, views)
    columns = {} if gradcam is None else {GRADCAM: gradcam}
    columns |= {ENERGY: theirs.encode(views, ()).masks["energy"], MASK: ours.encode(views, ()).masks["rationale"]}
    rows = [[maps[i].numpy() for maps in columns.values()] for i in range(len(views))]
    return attention_overlays([pixels(ours, view) for view in views], rows, list(columns))


def _few_birds(bench: Benchmark, encoder: Encoder) -> DecodedCache:
    source = bench.limited_source().split("test")
    assert source.labels is not None
    return open_cache(
        source.select(spaced_over_classes(source.labels, BIRDS)),
        encoder.config.framing.scale,
        cache_dir=bench.runtime.cache_dir,
        workers=bench.runtime.workers,
        progress=False,
    )
