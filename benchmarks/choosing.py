"""Can one tell without labels which of several encoders is the best? A zoo of encoders, and criteria tried on it.

    python benchmarks/choosing.py --domain birds --data CUB_200_2011 --weights RESNET18 --judge RESNET50
    python benchmarks/choosing.py --show

Of a domain only *train* images are used: 12 of each of 50 classes are searched, 480 others trained on. The zoo has
short trainings of different harshness, each at three points of the line between initial and trained weights. What
an encoder makes of the images is kept in ``--zoo``, so that a criterion (``criteria.py``) can be changed and tried
again. The same command continues. Labels are used for one thing: the mAP that a criterion should foretell.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import torch.nn.functional as F
from criteria import DOMAINS, judge_zoo, show
from numpy.typing import NDArray
from torch import Tensor

from finesight.data.cache import cache_side, open_cache
from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.sources import ImageSource, open_source
from finesight.features.encoder import Encoder
from finesight.io.atomic import atomic_path
from finesight.io.console import console
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.pooling import attention_mask, energy_map
from finesight.training.config import RuntimeConfig, TrainConfig, build_config
from finesight.training.save_encoder import FROZEN_POOLINGS, frozen_encoder, mix_with_initial
from finesight.training.train import train

CLASSES, SEARCHED, TRAINED, VARIED = 50, 12, 480, 3  # VARIED of a class's searched images are also seen changed
SIDE, JUDGE_SIDE, MASK_SIDE, BATCH, SEED = 128, 160, 256, 50, 0
POINTS = (0.4, 0.7, 1.0)  # of the way from the initial to the trained weights

MILD: dict[str, Any] = {"views.saturation": 0.1, "views.hue": 0.02, "views.gray": 0.0}
STRONG: dict[str, Any] = {"views.saturation": 0.4, "views.hue": 0.1, "views.gray": 0.2}
GENTLE: dict[str, Any] = {
    "backbone.freeze": 3,
    "backbone.frozen_norm": True,
    "optim.lr": 0.03,
    "optim.backbone_lr_ratio": 0.3,
    "optim.freeze_epochs": 1,
}
HARSH: dict[str, Any] = {"optim.lr": 0.03}
TRAININGS: dict[str, dict[str, Any]] = {  # epochs of 15 steps with 32 images, or 30 with 16
    "gentle-mild": {"method": "lcr", "epochs": 3, **GENTLE, **MILD},
    "gentle-strong": {"method": "lcr", "epochs": 3, **GENTLE, **STRONG},
    "harsh-mild": {"method": "lcr", "epochs": 2, **HARSH, **MILD},
    "harsh-strong": {"method": "lcr", "epochs": 2, **HARSH, **STRONG},
    "moco-hot": {"method": "moco-v2", "epochs": 1, **STRONG, "backbone.frozen_norm": True, "optim.lr": 0.1},
    "byol-gentle": {"method": "byol", "epochs": 1, "batch_size": 16, **GENTLE, "optim.freeze_epochs": 0, **STRONG},
    "simsiam-harsh": {"method": "simsiam", "epochs": 1, "batch_size": 16, **HARSH, **MILD},
}
COMMON: dict[str, Any] = {
    "backbone.name": "resnet18",
    "views.resolution": SIDE,
    "batch_size": 32,
    "optim.optimizer": "sgd",
    "optim.cosine": "step",
    "optim.warmup_epochs": 0,
    "validation.fraction": 0.0,
    "seed": SEED,
}


# --- images -----------------------------------------------------------------------------------------------------------


def domain_source(domain: str, data: Path | None, work: Path) -> ImageSource:
    if domain == "drawn":
        drawing = LookalikesConfig(species=CLASSES, train_per_species=30, test_per_species=1, size=144, seed=SEED)
        return make_lookalikes(work / "drawn-images", drawing).split("train")
    assert data is not None, "birds and cars need --data"
    return open_source(data).split("train")


def chosen_images(source: ImageSource) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which images are searched (class by class) and which are trained on: of the same classes, none of both."""
    assert source.labels is not None
    rng = np.random.default_rng(SEED)
    counts = np.bincount(source.labels)
    classes = np.sort(rng.permutation(np.flatnonzero(counts >= 2 * SEARCHED))[:CLASSES])
    members = [rng.permutation(np.flatnonzero(source.labels == label)) for label in classes]
    searched = np.concatenate([images[:SEARCHED] for images in members])
    rest = rng.permutation(np.concatenate([images[SEARCHED:] for images in members]))
    return searched, np.sort(rest[:TRAINED])


def write_list(source: ImageSource, images: NDArray[np.int64], file: Path) -> None:
    """The paths alone: training sees no label."""
    with open(file, "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(("path",))
        writer.writerows((source.file(int(i)),) for i in images)


def resized(views: Tensor, side: int) -> Tensor:
    return F.interpolate(views, (side, side), mode="bilinear", antialias=True)


def crop(view: Tensor, rng: np.random.Generator, flip: bool) -> Tensor:
    """A random crop of 40 to 80 % of the area at full size. (3, R, R) -> (3, R, R)"""
    side = round(SIDE * float(rng.uniform(0.4, 0.8)) ** 0.5)
    top, left = rng.integers(SIDE - side + 1, size=2)
    part = resized(view[None, :, top : top + side, left : left + side], SIDE)[0]
    return part.flip(2) if flip else part


@torch.no_grad()
def changed_views(plain: Tensor, frozen: Encoder) -> dict[str, Tensor]:
    """The same images changed: two crops, on another image's background, and with the object painted over.

    The object is where the frozen network's channel energy is among its highest 40 %.
    """
    rng = np.random.default_rng(SEED)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        phi = torch.cat([frozen.backbone(resized(part, MASK_SIDE)) for part in plain.split(10)])
    energy = attention_mask(energy_map(phi.float()))
    mask = resized(energy[:, None], SIDE)  # (N, 1, R, R)
    mask = torch.sigmoid(20 * (mask - mask.flatten(1).quantile(0.6, dim=1).view(-1, 1, 1, 1)))
    elsewhere = plain.roll(len(plain) // 2 + 1, 0)
    return {
        "crop-a": torch.stack([crop(view, rng, flip=False) for view in plain]),
        "crop-b": torch.stack([crop(view, rng, flip=True) for view in plain]),
        "pasted": mask * plain + (1 - mask) * elsewhere,
        "background": (1 - mask) * plain,  # 0 is the mean color
    }


# --- encoders ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def embedded(encoder: Encoder, views: Tensor) -> dict[str, NDArray[np.float16]]:
    """Features under every pooling and, as ``features``, under the encoder's own."""
    own = encoder.config.pooling
    names = tuple(dict.fromkeys((own, *FROZEN_POOLINGS)))
    encoder.eval()
    outputs = []
    for part in views.split(BATCH):
        with torch.autocast("cpu", dtype=torch.bfloat16):  # twice as fast
            phi = encoder.backbone(part)
        outputs.append(encoder.pool(phi.float(), names).features)
    joined = {name: torch.cat([output[name] for output in outputs]).half().numpy() for name in names}
    return joined | {"features": joined[own]}


def save(file: Path, **arrays: NDArray[Any]) -> None:
    with atomic_path(file) as scratch, open(scratch, "wb") as out:
        np.savez_compressed(out, **arrays)


def encoders(
    config: TrainConfig, name: str, work: Path, runtime: RuntimeConfig, done: Iterable[str]
) -> Iterable[tuple[str, Encoder]]:
    """Train, then yield the encoder at each point of the line that is not done yet."""
    points = {f"{name}-{point:g}": point for point in POINTS}
    if not points.keys() - set(done):
        return
    trained = Encoder.load(train(config, work / name, runtime).root)
    for label, point in points.items():
        if label not in done:
            mixed = mix_with_initial(trained.backbone, config.model_copy(update={"initial_weight_ratio": 1 - point}))
            yield label, Encoder(trained.config, mixed, trained.branch)


def make_zoo(domain: str, options: argparse.Namespace) -> None:
    zoo, work = options.zoo / domain, options.work / domain
    for folder in (zoo, zoo / "views", zoo / "trained", work):
        folder.mkdir(parents=True, exist_ok=True)
    source = domain_source(domain, options.data, work)
    searched, images = chosen_images(source)
    write_list(source, images, work / "train.csv")
    runtime = RuntimeConfig(cache_dir=options.cache_dir, precision="bf16", progress=False)
    cache = open_cache(source.select(searched), cache_side(SIDE), cache_dir=options.cache_dir)
    assert len(cache) == len(searched), "every searched image must be readable"
    labels = cache.source.labels
    assert labels is not None
    settings = {**COMMON, "data": str(work / "train.csv"), "backbone.weights": str(options.weights)}
    frozen = frozen_encoder(build_config({**settings, "method": "frozen"}))
    plain = frozen.cached_views(cache, range(len(cache)))
    varied = np.flatnonzero(np.arange(len(cache)) % SEARCHED < VARIED)
    views = changed_views(plain[varied], frozen)

    seen = open_cache(source.select(images), cache_side(SIDE), cache_dir=options.cache_dir)  # in training
    trained = {"plain": frozen.cached_views(seen, range(len(seen)))}
    few, rng = np.arange(0, len(seen), len(seen) // len(varied)), np.random.default_rng(SEED)
    for view, flip in (("crop-a", False), ("crop-b", True)):
        trained[view] = torch.stack([crop(one, rng, flip) for one in trained["plain"][few]])

    def embedded_views(encoder: Encoder, changed: Mapping[str, Tensor]) -> dict[str, NDArray[np.float16]]:
        return {f"{view}/{key}": rows for view in changed for key, rows in embedded(encoder, changed[view]).items()}

    def keep(name: str, encoder: Encoder, side: int = SIDE) -> None:
        if not (zoo / f"{name}.npz").exists():
            own = embedded(encoder, plain if side == SIDE else resized(plain, side))
            save(zoo / f"{name}.npz", labels=labels, **own)
        if side == SIDE and not (zoo / "views" / f"{name}.npz").exists():
            save(zoo / "views" / f"{name}.npz", varied=varied, **embedded_views(encoder, views))
        if side == SIDE:
            save(zoo / "trained" / f"{name}.npz", varied=few, **embedded_views(encoder, trained))
        console.print(f"{domain}: {name}")

    done = {file.stem for file in (zoo / "trained").glob("*.npz")}
    if "frozen" not in done:
        keep("frozen", frozen)
    for name, own in TRAININGS.items():
        for label, encoder in encoders(build_config({**settings, **own}), name, work, runtime, done):
            keep(label, encoder)
    if options.judge is not None and not (zoo / "judge.npz").exists():
        other = BackboneConfig(name="resnet50", weights=str(options.judge))
        config = build_config({**settings, "method": "frozen"}).model_copy(update={"backbone": other})
        keep("judge", frozen_encoder(config), JUDGE_SIDE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--domain", choices=DOMAINS)
    parser.add_argument("--data", type=Path, help="CUB_200_2011 or Stanford_Cars")
    parser.add_argument("--weights", type=Path, help="of a ResNet-18")
    parser.add_argument("--judge", type=Path, help="weights of a ResNet-50 that gives a second opinion")
    parser.add_argument("--zoo", type=Path, default=Path("runs/zoo"))
    parser.add_argument("--work", type=Path, default=Path("runs/choosing"))
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("--show", action="store_true", help="print the table of results/choosing")
    parser.add_argument("-o", "--out", type=Path, default=Path("results/choosing"))
    options = parser.parse_args()
    if options.domain:
        if options.weights is not None:
            make_zoo(options.domain, options)
        words = ["--domain", options.domain, "--weights", "RESNET18", "--judge", "RESNET50"]
        words += ["--data", options.data.absolute().name] if options.data else []
        command = shlex.join(["python", "benchmarks/choosing.py", *words])
        judge_zoo(options.zoo / options.domain, options.out / f"{options.domain}.json", command)
    if options.show:
        show(options.out)


if __name__ == "__main__":
    main()
