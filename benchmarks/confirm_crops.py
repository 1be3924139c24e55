"""Is "neighbors of two crops" right about another network than those it was found with? Runs with a ResNet-50.

    python benchmarks/confirm_crops.py birds=RUN cars=RUN

Each run is a finished one of `finesight train` (preset gentle). Its encoder and the frozen network make a line of
weights: frozen + factor · (encoder − frozen). The encoder of a gentle run is the mean of the initial and the trained
weights, so that factor 2 is what training alone left; more is overshoot. Nothing is tuned here. Images are of *train*,
10 of each of 60 classes, at 128 px: crops of 160 of them search among 480. Labels are used for mAP alone. Points that
are in the file are not computed again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from choosing import SIDE, crop
from criteria import Candidate, unit
from numpy.typing import NDArray
from scipy.stats import spearmanr

from finesight.data.cache import cache_side, open_cache
from finesight.data.sources import ImageSource, open_source
from finesight.evaluation.bootstrap import paired_bootstrap
from finesight.evaluation.retrieval import retrieval
from finesight.features.encoder import Encoder
from finesight.features.preprocess import cached_pixels
from finesight.io.atomic import write_atomic
from finesight.io.console import print_table
from finesight.paper.machine import record_measurement
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import FROZEN_POOLING, frozen_encoder
from finesight.training.verdict import trained_encoder

FACTORS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
CLASSES, EACH, SEARCHED, QUERIES = 60, 10, 480, 160
SEED, BATCH = 0, 50


def some_classes(source: ImageSource) -> ImageSource:
    labels = source.labels
    assert labels is not None
    generator = np.random.default_rng(SEED)
    classes = generator.permutation(np.flatnonzero(np.bincount(labels) >= EACH))[:CLASSES]
    images = [generator.permutation(np.flatnonzero(labels == label))[:EACH] for label in np.sort(classes)]
    return source.select(np.sort(np.concatenate(images)))


def on_the_line(frozen: Encoder, trained: Encoder, factor: float) -> Encoder:
    """Move the frozen encoder along the line."""
    start = frozen.backbone.state_dict()
    for name, value in trained.backbone.state_dict().items():
        if value.is_floating_point():
            start[name].lerp_(value, factor)
    return frozen


@torch.no_grad()
def embedded(encoder: Encoder, views: torch.Tensor) -> NDArray[np.float32]:
    with torch.autocast("cpu", dtype=torch.bfloat16):  # twice as fast
        parts = [encoder.backbone(part, folded=True) for part in views.split(BATCH)]
    pooled = [encoder.pool(phi.float(), (FROZEN_POOLING,)).features[FROZEN_POOLING] for phi in parts]
    return torch.cat(pooled).numpy()


def points(run: RunFolder, known: dict[str, Any], cache_dir: Path | None, keep: Callable[[], None]) -> None:
    """Fill in mAP, rank-1 and the shared neighbors at every factor that is not known yet."""
    config, generator = run.config(), np.random.default_rng(SEED)
    source = some_classes(open_source(config.data).split("train"))
    cache = open_cache(source, cache_side(SIDE), cache_dir=cache_dir)
    labels = cache.source.labels
    assert labels is not None
    plain = frozen_encoder(config).normalize(cached_pixels(cache, range(len(cache)), SIDE))
    drawing = np.random.default_rng([SEED, 6])
    searched = np.sort(drawing.permutation(len(cache))[:SEARCHED])
    queries = np.sort(drawing.permutation(len(searched))[:QUERIES])
    views = {
        name: torch.stack([crop(view, generator, flip) for view in plain[searched[queries]]])
        for name, flip in (("crop-a", False), ("crop-b", True))
    }
    trained = Encoder.load(trained_encoder(run))
    for factor in (factor for factor in FACTORS if str(factor) not in known):
        encoder = on_the_line(frozen_encoder(config), trained, factor)
        features = embedded(encoder, plain)
        scores = retrieval(features, labels)
        changed = {name: unit(embedded(encoder, seen)) for name, seen in views.items()}
        found = Candidate(unit(features[searched]), changed, queries).crops
        row = {key: round(scores.score(key), 3) for key in ("rank1", "mAP")}
        known[str(factor)] = row | {key: " ".join(f"{one:.4f}" for one in values) for key, values in found.items()}
        keep()


def judged(rows: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Compare every point with the frozen network, and say how often the word is right."""
    values = {factor: np.array(row[key].split(), dtype=np.float64) for factor, row in rows.items()}
    found: dict[str, Any] = {}
    right, wrong = 0, {}
    for factor, row in rows.items():
        difference = paired_bootstrap(values["0.0"], values[factor])
        gained = round(row["mAP"] - rows["0.0"]["mAP"], 2)
        said = "better" if difference.low > 0 else "worse" if difference.high < 0 else "cannot tell"
        interval = [round(value, 1) for value in (difference.mean, difference.low, difference.high)]
        found[factor] = {"mAP gained": gained, "shared neighbors gained": interval, "says": said}
        if said != "cannot tell" and (said == "better") == (gained > 0):
            right += 1
        elif said != "cannot tell":
            wrong[factor] = gained
    pairs = [(values[factor].mean(), row["mAP"]) for factor, row in rows.items()]
    spearman = round(float(spearmanr(*zip(*pairs, strict=True)).statistic), 3)
    return {"right": right, "wrong": wrong, "spearman": spearman, "points": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="DOMAIN=RUN")
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("results/choosing/resnet50.json"))
    options = parser.parse_args()
    stored = json.loads(options.out.read_text()) if options.out.exists() else {"runs": {}}
    for domain, _, run in (text.partition("=") for text in options.runs):
        known = stored["runs"].setdefault(domain, {})
        points(RunFolder(Path(run)), known, options.cache_dir, lambda: write_atomic(options.out, json.dumps(stored)))
    command = "python benchmarks/confirm_crops.py " + " ".join(f"{domain}=RUN" for domain in stored["runs"])
    keys = ("shared", "less chance")
    found = {key: {domain: judged(rows, key) for domain, rows in stored["runs"].items()} for key in keys}
    record_measurement({"command": command, "summary": found, "runs": stored["runs"]}, options.out)
    for key, domain in product(keys, stored["runs"]):
        one = found[key][domain]
        print(f"{domain}, {key}: {one['right']} right, wrong {one['wrong']}, Spearman {one['spearman']:+.2f}")
        print_table([{"factor": factor, **row} for factor, row in one["points"].items()])


if __name__ == "__main__":
    main()
