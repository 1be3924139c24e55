"""The bench's pictures: scores over K, and the paper's Figure 1, where MoCo v2 and LCR look."""

from __future__ import annotations

import numpy as np

from finesight.data.cache import DecodedCache, cache_side, open_cache
from finesight.explain.inputs import spaced_over_classes
from finesight.explain.objective_cam import loss_gradcam
from finesight.features.encoder import Encoder, pixels
from finesight.paper.engine import Bench
from finesight.paper.networks import finished
from finesight.paper.profiles import Profile
from finesight.paper.results import Results
from finesight.paper.systems import SYSTEMS
from finesight.paper.table import CURVE, OURS, values
from finesight.plots.figures import KCurve, k_curves
from finesight.plots.sheets import attention_overlays

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
    views = ours.cached_views(cache, np.arange(len(cache)))
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
