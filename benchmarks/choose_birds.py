"""How the settings of the bench's CPU profiles were chosen, without looking at a test image.

    python benchmarks/choose_birds.py VARIANT --data CUB_200_2011 --weights FILE
    python benchmarks/choose_birds.py strong-colors --data Stanford_Cars --classes 51 100 --name cars --weights FILE

Takes the *train* images of classes 51 to 150 of CUB-200-2011, half of each class to train on and half to search in; the
test split is not opened. Trains the variant (one of VARIANTS, or ``frozen``: nothing), then scores it under every
pooling, as trained and with half of the initial weights mixed in, with several powers of the mask, and beside the map
of the stage before the last one in several weights: ``MASK-gem+0.7`` has 0.7 of it, with what that gains over none of
it and the 95 % interval over queries. Any other data with labels can be given.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from finesight.api import frozen
from finesight.data.cache import cache_side, open_cache
from finesight.data.sources import ImageSource, open_source
from finesight.evaluation.bootstrap import paired_bootstrap
from finesight.evaluation.retrieval import RetrievalScores, retrieval
from finesight.features.encoder import Encoder
from finesight.features.extract import has_objects, object_masks
from finesight.io.progress import track
from finesight.nn.backbone import Backbone
from finesight.nn.pooling import attention_mask, energy_map, object_share, pool, pool_two_maps
from finesight.paper.machine import record_measurement
from finesight.paper.profiles import PROFILES
from finesight.training.color_rule import STRONG
from finesight.training.config import RuntimeConfig, TrainConfig, build_config
from finesight.training.save_encoder import mix_with_initial
from finesight.training.train import train

SPLIT_SEED, BATCH = 7, 16
POWERS = (1.0, 2.0, 3.0, 4.0)
OWN_POWER = 2.0  # of LCR's mask
EARLIER_WEIGHTS = (0.5, 0.7, 1.0)  # of the earlier map; none of it are the poolings of one map
SHARES = (0.0, 0.5)
KEYS = ("rank1", "rank5", "mAP")
HELD: dict[str, Any] = {**PROFILES["cpu-50"].settings, "initial_weight_ratio": 0.0}
GENTLE: dict[str, Any] = {**HELD, "optim.backbone_lr_ratio": 0.1}
COLORS: dict[str, Any] = {**GENTLE, "views.saturation": 0.4, "views.hue": 0.1, "views.gray": 0.2}
VARIANTS: dict[str, dict[str, Any]] = {
    "chosen": HELD,
    "strong-colors": {**HELD, **STRONG},  # where color tells no class, as with cars
    "gentle": GENTLE,
    "moco-colours": COLORS,
    "moco-colours-160px": {**COLORS, "views.resolution": 160, "epochs": 5},
    # φ of 7 × 7 at 112 px by an undilated last stage, no waiting, one rate for head and backbone
    "moco-colours-112px-stride16": {
        **COLORS,
        "views.resolution": 112,
        "backbone.output_stride": 16,
        "backbone.dilate": False,
        "optim.lr": 0.015,
        "optim.backbone_lr_ratio": 1.0,
        "optim.freeze_epochs": 0,
        "epochs": 5,
    },
}


def validation_source(data: Path, first: int, last: int) -> ImageSource:
    """Half of the train images of each class from ``first`` to ``last`` as ``train``, the other half as ``test``."""
    source = open_source(data).split("train")
    assert source.labels is not None
    source = source.select((source.labels >= first - 1) & (source.labels < last))
    assert source.labels is not None
    splits = np.full(len(source), "train", dtype="<U5")
    rng = np.random.default_rng(SPLIT_SEED)
    for label in np.unique(source.labels):
        members = rng.permutation(np.flatnonzero(source.labels == label))
        splits[members[len(members) // 2 :]] = "test"
    return replace(source, splits=splits)


def write_list(source: ImageSource, file: Path) -> None:
    assert source.labels is not None
    assert source.splits is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(("path", "label", "split"))
        writer.writerows((source.file(i), source.labels[i], source.splits[i]) for i in range(len(source)))


def at_stride_32(encoder: Encoder, config: TrainConfig, share: float, resolution: int) -> Encoder:
    """The network with ``share`` of its initial weights and ImageNet's stride, for images of a size."""
    mixed = mix_with_initial(encoder.backbone, config.model_copy(update={"initial_weight_ratio": share}))
    backbone = Backbone(config.backbone.model_copy(update={"output_stride": 32}), load=False)
    backbone.load_state_dict(mixed.state_dict())
    changes = {"backbone": backbone.config, "resolution": resolution}
    return Encoder(encoder.config.model_copy(update=changes), backbone, encoder.branch)


@torch.no_grad()
def scores(encoder: Encoder, source: ImageSource, runtime: RuntimeConfig) -> dict[str, Any]:
    """By pooling, in one pass; a mask to the power p is ``rationale^p``."""
    size = encoder.config.resolution
    cache = open_cache(source, cache_side(size), cache_dir=runtime.cache_dir)
    assert cache.source.labels is not None
    assert cache.source.splits is not None
    test = np.flatnonzero(cache.source.splits == "test")
    features: dict[str, list[torch.Tensor]] = {}
    shares: dict[str, list[float]] = {}
    batches = np.split(test, range(BATCH, len(test), BATCH))
    for rows in track(batches, len(batches), "embedding"):
        made = encoder.backbone.outputs(encoder.cached_views(cache, rows), folded=True, earlier=True)
        phi, earlier = made.phi, made.earlier
        assert earlier is not None
        masks = {"energy": attention_mask(energy_map(phi))}
        if has_objects(cache.source):
            shown = [mask for mask in object_masks(cache, rows, size) if mask is not None]
            masks["box"] = object_share(torch.from_numpy(np.stack(shown)), *phi.shape[2:])
        if encoder.branch is not None:
            masks |= {f"rationale^{p:g}": attention_mask(encoder.branch(phi)) ** p for p in POWERS}
        for name, mask in {"": None, **masks}.items():
            gem = f"{name}-gem" if name else "gem"
            features.setdefault(name or "average", []).append(pool(phi, mask))
            features.setdefault(gem, []).append(pool(phi, mask, gem=True))
            if name in ("", "energy", "box", f"rationale^{OWN_POWER:g}"):
                for weight in EARLIER_WEIGHTS:
                    both = pool_two_maps(phi, earlier, mask, weight)
                    features.setdefault(f"{gem}+{weight:g}", []).append(both)
        for name, mask in masks.items() if "box" in masks else ():
            inside = (mask * masks["box"]).sum((1, 2)) / mask.sum((1, 2))
            shares.setdefault(name, []).extend(inside.tolist())
    labels = cache.source.labels[test]
    found = {name: retrieval(torch.cat(pieces).numpy(), labels) for name, pieces in features.items()}
    return {name: _row(name, found, shares) for name in found}


def _row(name: str, found: dict[str, RetrievalScores], shares: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {key: round(found[name].score(key), 2) for key in KEYS}
    alone, _, weight = name.partition("+")
    if (where := shares.get(alone.removesuffix("-gem"))) is not None:
        row["inside"] = round(100 * float(np.mean(where)), 1)
    if weight:
        for key in ("rank1", "mAP"):
            gained = paired_bootstrap(found[alone].per_query[key], found[name].per_query[key])
            row[f"{key} gained"] = [round(value, 2) for value in (gained.mean, gained.low, gained.high)]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", choices=["frozen", *VARIANTS])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--classes", type=int, nargs=2, default=(51, 150), metavar=("FIRST", "LAST"))
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the initial weights")
    parser.add_argument("--name", default="", help="of the data, where it is not the birds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/choose"))
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("results/validation"))
    options = parser.parse_args()
    source = validation_source(options.data, *options.classes)
    runtime = RuntimeConfig(cache_dir=options.cache_dir)
    settings = VARIANTS.get(options.variant, HELD)
    name = "-".join(filter(None, (options.name, options.variant, f"seed{options.seed}")))
    file = options.runs / f"{options.name or 'validation'}.csv"
    write_list(source, file)
    config = build_config(
        {**settings, "data": str(file), "method": "lcr", "backbone.weights": options.weights, "seed": options.seed}
    )
    rows: dict[str, Any] = {}
    if options.variant == "frozen":
        backbone = config.backbone.model_copy(update={"output_stride": 32})
        rows["initial"] = scores(frozen(backbone, config.encoder_resolution), source, runtime)
    else:
        encoder = Encoder.load(train(config, options.runs / name, runtime).root)
        for share in options.shares:
            mixed = at_stride_32(encoder, config, share, config.encoder_resolution)
            rows[f"initial share {share:g}"] = scores(mixed, source, runtime)
    words = [options.variant, "--seed", str(options.seed), "--data", options.data.absolute().name]
    words += ["--classes", *map(str, options.classes), "--shares", *map(str, options.shares)]
    words += ["--name", options.name] if options.name else []
    words += ["--weights", Path(options.weights).name]  # paths by their last part: they differ from machine to machine
    result = {
        "command": shlex.join(["python", "benchmarks/choose_birds.py", *words]),
        "images": {name: int(np.sum(source.splits == name)) for name in ("train", "test")},
        "settings": settings if options.variant != "frozen" else {},
        "scores": rows,
    }
    record_measurement(result, options.out / f"{name}.json")
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
