"""How the settings of the bench's CPU profiles were chosen, without looking at a test image.

    python benchmarks/choose_birds.py VARIANT --data CUB_200_2011 --weights FILE

Takes the *train* images of classes 51 to 150 of CUB-200-2011, half of each class to train on and half to search in; the
test split is not opened. Trains the variant (one of VARIANTS, or ``frozen``: nothing), then scores it under every
pooling, as trained and with half of the initial weights mixed in, with several powers of the mask.
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
from finesight.evaluation.retrieval import retrieval
from finesight.features.encoder import Encoder
from finesight.features.extract import object_masks
from finesight.io.progress import track
from finesight.nn.backbone import Backbone
from finesight.nn.pooling import attention_mask, energy_map, object_share, pool
from finesight.paper.machine import record_measurement
from finesight.paper.profiles import PROFILES
from finesight.training.config import RuntimeConfig, TrainConfig, build_config
from finesight.training.save_encoder import mix_with_initial
from finesight.training.train import train

FIRST, LAST, SPLIT_SEED = 50, 150, 7
POWERS = (1.0, 2.0, 3.0, 4.0)
SHARES = (0.0, 0.5)
HELD: dict[str, Any] = {**PROFILES["cpu-50"].settings, "initial_weight_ratio": 0.0}
GENTLE: dict[str, Any] = {**HELD, "optim.backbone_lr_ratio": 0.1}
COLORS: dict[str, Any] = {**GENTLE, "views.saturation": 0.4, "views.hue": 0.1, "views.gray": 0.2}
VARIANTS: dict[str, dict[str, Any]] = {
    "chosen": HELD,
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


def validation_source(data: Path) -> ImageSource:
    """Half of the train images of each class as ``train``, the other half as ``test``."""
    source = open_source(data).split("train")
    assert source.labels is not None
    source = source.select((source.labels >= FIRST) & (source.labels < LAST))
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


def at_stride_32(encoder: Encoder, config: TrainConfig, share: float) -> Encoder:
    """The network with ``share`` of its initial weights, at the stride ImageNet trained it for."""
    mixed = mix_with_initial(encoder.backbone, config.model_copy(update={"initial_weight_ratio": share}))
    backbone = Backbone(config.backbone.model_copy(update={"output_stride": 32}), load=False)
    backbone.load_state_dict(mixed.state_dict())
    return Encoder(encoder.config.model_copy(update={"backbone": backbone.config}), backbone, encoder.branch)


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
    for i in track(test, len(test), "embedding"):
        phi = encoder.backbone(encoder.cached_views(cache, [i])).float()
        shown = torch.from_numpy(
            np.stack([mask for mask in object_masks(cache, np.array([i]), size) if mask is not None])
        )
        masks = {"energy": attention_mask(energy_map(phi)), "box": object_share(shown, *phi.shape[2:])}
        if encoder.branch is not None:
            masks |= {f"rationale^{p:g}": attention_mask(encoder.branch(phi)) ** p for p in POWERS}
        for name, mask in {"": None, **masks}.items():
            for gem in (False, True):
                key = f"{name}-gem" if gem and name else name or ("gem" if gem else "average")
                features.setdefault(key, []).append(pool(phi, mask, gem=gem))
        for name, mask in masks.items():
            shares.setdefault(name, []).append(float((mask * masks["box"]).sum() / mask.sum()))
    rows = {}
    for name, pieces in features.items():
        found = retrieval(torch.cat(pieces).numpy(), cache.source.labels[test]).summary()
        rows[name] = {key: round(float(found[key]), 2) for key in ("rank1", "rank5", "mAP")}
        if (where := shares.get(name.removesuffix("-gem"))) is not None:
            rows[name]["inside"] = round(100 * float(np.mean(where)), 1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", choices=["frozen", *VARIANTS])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/choose"))
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("results/validation"))
    options = parser.parse_args()
    source = validation_source(options.data)
    runtime = RuntimeConfig(cache_dir=options.cache_dir)
    settings = VARIANTS.get(options.variant, HELD)
    file = options.runs / "validation.csv"
    write_list(source, file)
    config = build_config(
        {**settings, "data": str(file), "method": "lcr", "backbone.weights": options.weights, "seed": options.seed}
    )
    rows: dict[str, Any] = {}
    if options.variant == "frozen":
        backbone = config.backbone.model_copy(update={"output_stride": 32})
        rows["initial"] = scores(frozen(backbone, config.encoder_resolution), source, runtime)
    else:
        encoder = Encoder.load(train(config, options.runs / f"{options.variant}-seed{options.seed}", runtime).root)
        for share in SHARES:
            rows[f"initial share {share:g}"] = scores(at_stride_32(encoder, config, share), source, runtime)
    words = [options.variant, "--seed", str(options.seed), "--data", options.data.absolute().name]
    words += ["--weights", Path(options.weights).name]  # paths by their last part: they differ from machine to machine
    result = {
        "command": shlex.join(["python", "benchmarks/choose_birds.py", *words]),
        "images": {name: int(np.sum(source.splits == name)) for name in ("train", "test")},
        "settings": settings if options.variant != "frozen" else {},
        "scores": rows,
    }
    record_measurement(result, options.out / f"{options.variant}-seed{options.seed}.json")
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
