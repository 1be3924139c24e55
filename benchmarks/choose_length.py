"""How long gentle training should be: finished runs of different lengths, scored on train images of some classes.

    finesight train --data Stanford_Cars --weights FILE --preset gentle --set max_steps=150 --out runs/150
    python benchmarks/choose_length.py --classes 40 runs/150 runs/278 runs/406 -o results/choosing/lengths-cars.json

Training sees no label, so that images it was trained on can be scored too; test images are left alone. Beside the runs
stands the frozen network under energy-gem, its best pooling.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from finesight.data.cache import cache_side, open_cache
from finesight.data.sources import open_source
from finesight.evaluation.retrieval import retrieval
from finesight.features.encoder import Encoder
from finesight.features.extract import extract
from finesight.paper.machine import record_measurement
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import frozen_encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="finished runs on the same data")
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    configs = [RunFolder(run).config() for run in options.runs]
    source = open_source(configs[0].data).split("train")
    cache = open_cache(source, cache_side(configs[0].encoder_resolution), cache_dir=options.cache_dir)
    labels = cache.source.labels
    assert labels is not None
    chosen = np.random.default_rng(options.seed).permutation(np.unique(labels))[: options.classes]
    images = np.flatnonzero(np.isin(labels, chosen))
    encoders = {"frozen": frozen_encoder(configs[0])}
    encoders |= {str(config.max_steps): Encoder.load(run) for run, config in zip(options.runs, configs, strict=True)}
    rows = {}
    for steps, encoder in encoders.items():
        pooling = encoder.config.pooling
        scores = retrieval(extract(encoder, cache, images, (pooling,)).features[pooling], labels[images])
        rows[steps] = {"pooling": pooling, **{key: round(scores.score(key), 2) for key in ("rank1", "mAP")}}
        print(steps, rows[steps], flush=True)
    facts = {"images": len(images), "classes": options.classes, "seed": options.seed, "steps": rows}
    print(record_measurement(facts, options.out))


if __name__ == "__main__":
    main()
