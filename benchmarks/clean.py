"""How well `finesight clean` finds errors that were planted, beside cleanlab, imagehash and fastdup.

    python benchmarks/clean.py labels --data CUB_200_2011 --split train --seeds 100 101 --weights FILE -o FILE.json
    python benchmarks/clean.py labels --data CUB_200_2011 --split test --seeds 0 1 --weights FILE -o FILE.json
    python benchmarks/clean.py copies --data CUB_200_2011 --cars Stanford_Cars --split test --seed 0 --weights FILE \\
        -o FILE.json

``labels`` gives a share of the images another label: any other class, or one of the five classes whose mean feature is
nearest (look-alikes). ``copies`` adds copies of some images (byte for byte, compressed again, half the size, mirrored,
cropped, brighter), cars, and blurred and dark photos. Defaults were chosen on the train split with other seeds; the
test split was scored once. Features are kept in --work, so that the second command embeds nothing twice.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.metrics import average_precision_score, precision_recall_fscore_support
from sklearn.model_selection import StratifiedKFold

from finesight.api import frozen
from finesight.curation.clean import clean
from finesight.curation.embedding import embed_cached
from finesight.curation.suspects import THRESHOLD, Votes, judge_labels
from finesight.data.cache import open_cache
from finesight.data.sources import ImageSource, open_source
from finesight.evaluation.retrieval import neighbors
from finesight.evaluation.softmax import fit
from finesight.features.embedder import unit
from finesight.features.encoder import Encoder
from finesight.io.table import write_table
from finesight.nn.backbone_config import BackboneConfig
from finesight.paper.machine import record_measurement
from finesight.training.save_encoder import frozen_pooling

RATES, KINDS = (0.05, 0.1), ("uniform", "look-alike")
LOOK_ALIKES = 5
FOLDS, EPOCHS, RATE, SCALE = 5, 40, 1.0, 8.0  # of the linear probe
EACH = 50  # planted copies of a kind, and photos of each other kind
Shares = NDArray[np.float64]
Labels = NDArray[np.int64]


def encoder_of(args: argparse.Namespace) -> Encoder:
    backbone = BackboneConfig(name=args.backbone, weights=str(args.weights))
    return frozen(backbone, args.resolution, frozen_pooling(args.backbone))


def plant(labels: Labels, classes: int, rate: float, kind: str, alike: Labels, seed: int) -> Labels:
    """Give a share of the images another label."""
    random = np.random.default_rng(seed)
    chosen = random.choice(len(labels), round(rate * len(labels)), replace=False)
    changed = labels.copy()
    for i in chosen.tolist():
        if kind == "uniform":
            changed[i] = (labels[i] + random.integers(1, classes)) % classes
        else:
            changed[i] = alike[labels[i], random.integers(LOOK_ALIKES)]
    return changed


def look_alikes(x: NDArray[np.float32], labels: Labels, classes: int) -> Labels:
    """Return the classes whose mean feature is nearest to that of each class. -> (classes, LOOK_ALIKES)"""
    means = unit(np.stack([x[labels == c].mean(0) for c in range(classes)]))
    likeness = means @ means.T
    np.fill_diagonal(likeness, -np.inf)
    return np.argsort(-likeness, axis=1)[:, :LOOK_ALIKES]


def knn_shares(
    nearest: Labels, cosines: NDArray[np.float32], labels: Labels, classes: int, temperature: float
) -> Shares:
    """Let the nearest other images vote, each by its similarity."""
    weights = np.exp((cosines - cosines[:, :1]) / temperature)
    votes = np.zeros((len(labels), classes))
    for column in range(nearest.shape[1]):
        np.add.at(votes, (np.arange(len(labels)), labels[nearest[:, column]]), weights[:, column])
    return votes / votes.sum(1, keepdims=True)


def probe_shares(x: NDArray[np.float32], labels: Labels, classes: int, seed: int) -> Shares:
    """Fit softmax regressions to four fifths of the images and ask them about the others, as cleanlab wants it."""
    shares = np.zeros((len(labels), classes))
    rows = torch.from_numpy(SCALE * (x - x.mean(0)))
    for train, rest in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, labels):
        weight = fit(rows[train], torch.from_numpy(labels[train]), classes, (RATE,), EPOCHS, seed)[0]
        shares[rest] = (rows[rest] @ weight[:, :-1].T + weight[:, -1]).double().softmax(1).numpy()
    return shares


def judged(wrong: NDArray[np.bool_], score: Shares, found: NDArray[np.bool_] | None) -> dict[str, float]:
    """Score a ranking and, where the system chooses by itself, what it chose."""
    result = {"average precision": float(average_precision_score(wrong, score))}
    if found is not None:
        precision, recall, f1, _ = precision_recall_fscore_support(wrong, found, average="binary", zero_division=0)
        result |= {"precision": float(precision), "recall": float(recall), "F1": float(f1), "found": int(found.sum())}
    return result


def systems(
    x: NDArray[np.float32], near: tuple[Labels, NDArray[np.float32]], labels: Labels, classes: int, seed: int
) -> dict[str, tuple[Shares, NDArray[np.bool_] | None]]:
    """Return, by system, how suspicious each label is, and which labels the system calls wrong."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    own = np.arange(len(labels))
    results: dict[str, tuple[Shares, NDArray[np.bool_] | None]] = {}
    wrong, _ = judge_labels(x, labels, classes)
    results["finesight"] = wrong, wrong >= THRESHOLD
    shares = {"leave-one-out ridge (finesight)": Votes.fit(x, labels, classes, None).probabilities(own)}
    for k, temperature in ((10, 0.07), (20, 0.07), (20, 0.03), (50, 0.03)):
        votes = knn_shares(near[0][:, :k], near[1][:, :k], labels, classes, temperature)
        shares[f"kNN, k {k}, temperature {temperature}"] = votes
    shares["linear probe out of fold"] = probe_shares(x, labels, classes, seed)
    for name, votes in shares.items():
        given = votes[own, labels]
        others = votes.copy()
        others[own, labels] = -1
        results[f"{name}: 1 − share of the label"] = 1 - given, None
        results[f"{name}: margin"] = others.max(1) - given, others.max(1) > given
    both = (shares["leave-one-out ridge (finesight)"] + shares["kNN, k 20, temperature 0.03"])[own, labels]
    results["mean of ridge and kNN"] = 1 - both / 2, None
    for name in ("linear probe out of fold", "kNN, k 20, temperature 0.07", "leave-one-out ridge (finesight)"):
        quality = get_label_quality_scores(labels, shares[name])
        results[f"cleanlab, {name}"] = 1 - quality, find_label_issues(labels, shares[name], n_jobs=1)
    return results


def labels_command(args: argparse.Namespace) -> dict[str, Any]:
    encoder, source = encoder_of(args), open_source(args.data).split(args.split)
    cache = open_cache(source, encoder.config.framing.scale)
    x = unit(embed_cached(encoder, cache, store=args.work / f"features-{args.backbone}-{args.resolution}"))
    truth, classes = cache.source.labels, len(cache.source.classes)
    near = neighbors(x, np.arange(len(x)), 50)
    alike = look_alikes(x, truth, classes)
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        for rate in RATES:
            for seed in args.seeds:
                labels = plant(truth, classes, rate, kind, alike, seed)
                began = time.perf_counter()
                probability, suggested = judge_labels(x, labels, classes)
                seconds = time.perf_counter() - began
                wrong = labels != truth
                listed = wrong & (probability >= THRESHOLD)
                facts = {"kind": kind, "rate": rate, "seed": seed}
                rows.append(
                    {
                        **facts,
                        "system": "calibration",
                        "expected errors": float(probability.sum()),
                        "planted": int(wrong.sum()),
                        "right suggestion": float((suggested[listed] == truth[listed]).mean()),
                        "seconds": seconds,
                        "bins": calibration(probability, wrong),
                    }
                )
                for name, (score, found) in systems(x, near, labels, classes, seed).items():
                    rows.append({**facts, "system": name, **judged(wrong, score, found)})
                print(
                    kind, rate, seed, *(f"{r['system']}: {r['average precision']:.3f}" for r in rows[-5:]), flush=True
                )
    return {"images": len(x), "classes": classes, "rows": rows}


def calibration(probability: NDArray[np.float32], wrong: NDArray[np.bool_]) -> list[dict[str, float]]:
    edges = (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0001)
    bins = []
    for low, high in pairwise(edges):
        here = (probability >= low) & (probability < high)
        if here.any():
            said, true = float(probability[here].mean()), float(wrong[here].mean())
            bins.append({"from": low, "images": int(here.sum()), "said": said, "planted": true})
    return bins


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "compressed again": lambda image: image,  # at another quality
    "half the size": lambda image: image.resize((max(1, image.width // 2), max(1, image.height // 2))),
    "mirrored": ImageOps.mirror,
    "cropped to 90 %": lambda image: crop(image, 0.9),
    "cropped to 75 %": lambda image: crop(image, 0.75),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.4),
}


def crop(image: Image.Image, share: float) -> Image.Image:
    """Keep a share of each side, of the lower right."""
    return image.crop((round((1 - share) * image.width), round((1 - share) * image.height), image.width, image.height))


def plant_files(source: ImageSource, cars: ImageSource, folder: Path, seed: int) -> dict[str, dict[str, str]]:
    """Write copies, cars, and blurred and dark photos. -> kind -> file -> the image it was made of"""
    random = np.random.default_rng(seed)
    order = random.permutation(len(source)).tolist()
    planted: dict[str, dict[str, str]] = {}
    for kind in ("equal bytes", *CHANGES, "blurred", "dark"):
        planted[kind] = {}
        for _ in range(EACH):
            origin = source.file(order.pop())
            file = folder / f"{kind.replace(' ', '-').replace('%', '')}-{len(planted[kind]):03d}.jpg"
            if kind == "equal bytes":
                shutil.copy(origin, file)
            else:
                image = Image.open(origin).convert("RGB")
                if kind == "blurred":
                    changed = image.filter(ImageFilter.GaussianBlur(min(image.size) / 40))
                elif kind == "dark":
                    changed = ImageEnhance.Brightness(image).enhance(0.12)
                else:
                    changed = CHANGES[kind](image)
                changed.save(file, quality=50 if kind == "compressed again" else 85)
            planted[kind][str(file)] = str(origin)
    chosen = random.choice(len(cars), EACH, replace=False)
    planted["car"] = {str(cars.file(int(i))): "" for i in chosen}
    return planted


def copies_command(args: argparse.Namespace) -> dict[str, Any]:
    encoder, source = encoder_of(args), open_source(args.data).split(args.split)
    cars = open_source(args.cars).split(args.split)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "files").mkdir()
        planted = plant_files(source, cars, folder / "files", args.seed)
        replaced = {origin for kind in ("blurred", "dark") for origin in planted[kind].values()}  # not copies of these
        paths = [str(source.file(i)) for i in range(len(source)) if str(source.file(i)) not in replaced]
        paths += [file for files in planted.values() for file in files]
        write_table(folder / "list.csv", ("path",), ((path,) for path in paths))
        began = time.perf_counter()
        store = args.work / f"features-{args.backbone}-{args.resolution}"
        found = clean(folder / "list.csv", encoder, store=store)
        result: dict[str, Any] = {"images": len(paths), "seconds": time.perf_counter() - began}
        groups = {copy.path: n for n, group in enumerate(found.duplicates) for copy in group.images}
        result["finesight"] = score_copies(planted, groups)
        result["by cosine"] = cosine_table(planted, found, args.same)
        result["outliers"] = score_outliers(planted, found, args.far)
        result["imagehash"] = {str(bits): score_copies(planted, hash_groups(paths, bits)) for bits in (4, 8)}
        if args.fastdup is not None:
            result["fastdup"] = fastdup_groups(args.fastdup, paths, planted)
    return result


def score_copies(planted: dict[str, dict[str, str]], groups: dict[str, int]) -> dict[str, Any]:
    """Return the share of planted copies that are in the group of their original, and how many other images are."""
    kinds = [kind for kind in planted if kind not in ("car", "blurred", "dark")]
    recall = {
        kind: float(np.mean([groups.get(file, -1) == groups.get(origin, -2) for file, origin in planted[kind].items()]))
        for kind in kinds
    }
    meant = {file for kind in kinds for pair in planted[kind].items() for file in pair}
    others = sum(path not in meant for path in groups)
    files = sum(len(planted[kind]) for kind in kinds)
    right = sum(groups.get(f, -1) == groups.get(o, -2) for kind in kinds for f, o in planted[kind].items())
    return {"recall": recall, "recall of all": right / files, "other images in groups": others}


def cosine_table(planted: dict[str, dict[str, str]], found: Any, sames: list[float]) -> dict[str, Any]:
    """Return what a limit of the cosine alone would find, and how many other images it would call copies."""
    place = {str(path): i for i, path in enumerate(found.source.paths)}
    x = unit(found.features)
    kinds = {kind: files for kind, files in planted.items() if kind not in ("car", "blurred", "dark")}
    pairs = {kind: [float(x[place[a]] @ x[place[b]]) for a, b in files.items()] for kind, files in kinds.items()}
    meant = {place[path] for files in kinds.values() for pair in files.items() for path in pair}
    others = np.array([i not in meant for i in range(len(x))])
    highest = found.cosines[others, 0]
    table: dict[str, Any] = {"median": {kind: float(np.median(values)) for kind, values in pairs.items()}}
    for same in sames:
        recall = {kind: float(np.mean(np.array(values) >= same)) for kind, values in pairs.items()}
        table[str(same)] = {"recall": recall, "other images": int((highest >= same).sum())}
    return table


def score_outliers(planted: dict[str, dict[str, str]], found: Any, fars: list[float]) -> dict[str, Any]:
    paths = [str(path) for path in found.source.paths]
    listed = {one.path: one.why for one in found.outliers}
    result: dict[str, Any] = {}
    is_car = np.array([path in planted["car"] for path in paths])
    for far in fars:
        chosen = found.distance >= far
        result[f"cars, far {far}"] = judged(is_car, found.distance, chosen)
    for kind, word in (("blurred", "blurred"), ("dark", "too dark")):
        those = np.array([path in planted[kind] for path in paths])
        result[kind] = judged(those, those.astype(float), np.array([word in listed.get(path, ()) for path in paths]))
        result[kind].pop("average precision")
    return result


def hash_groups(paths: list[str], bits: int) -> dict[str, int]:
    """Group images by imagehash's perceptual hash."""
    import imagehash

    from finesight.data.image_hash import group_duplicates

    hashes = [int(str(imagehash.phash(Image.open(path))), 16) for path in paths]
    group = group_duplicates([None] * len(paths), hashes, bits)
    sizes = np.bincount(group, minlength=len(paths))
    return {path: int(number) for path, number in zip(paths, group, strict=True) if sizes[number] > 1}


FASTDUP = """
import csv, sys, fastdup
paths, work, out = sys.argv[1:]
fd = fastdup.create(work_dir=work)
fd.run(input_dir=[line.strip() for line in open(paths)], overwrite=True, print_summary=False, num_threads=1)
groups = fd.connected_components()[0] if hasattr(fd, "connected_components") else None
groups[["filename", "component_id", "count"]].to_csv(out, index=False)
fd.outliers()[["filename_outlier", "distance"]].to_csv(out + ".outliers", index=False)
"""


def fastdup_groups(python: str, paths: list[str], planted: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Run fastdup in an environment of its own: it needs older numpy and pillow."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "paths.txt").write_text("\n".join(paths))
        command = [python, "-c", FASTDUP, str(folder / "paths.txt"), str(folder / "work"), str(folder / "groups.csv")]
        env = {**os.environ, "PYTHONPATH": "", "SENTRY_OPT_OUT": "1"}  # it would report to its makers
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        if done.returncode != 0:
            return {"failed": done.stderr.strip().splitlines()[-1:]}
        import csv

        with (folder / "groups.csv").open() as stream:
            rows = [row for row in csv.DictReader(stream) if int(float(row["count"])) > 1]
        groups = {row["filename"]: int(float(row["component_id"])) for row in rows}
        with (folder / "groups.csv.outliers").open() as stream:
            far = [row["filename_outlier"] for row in csv.DictReader(stream)]
    cars = set(planted["car"])
    outliers = {"listed": len(far), "cars among them": len(cars & set(far))}
    return {**score_copies(planted, groups), "outliers": outliers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("labels", "copies"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cars", type=Path)
    parser.add_argument("--split", choices=("train", "test"), required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--resolution", type=int, default=128)
    parser.add_argument("--same", type=float, nargs="*", default=[])
    parser.add_argument("--far", type=float, nargs="*", default=[])
    parser.add_argument("--fastdup", help="the Python of an environment that has fastdup")
    parser.add_argument("--work", type=Path, default=Path("clean-work"))
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args()
    result = labels_command(args) if args.command == "labels" else copies_command(args)
    settings = {
        k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k not in ("work", "out", "fastdup")
    }
    settings |= {k: Path(settings[k]).name for k in ("data", "cars", "weights") if settings[k] not in (None, "None")}
    print(record_measurement({"settings": settings, **result}, args.out))


if __name__ == "__main__":
    main()
