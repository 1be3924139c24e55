"""Ideas that could make LCR's features better, each under LCR's mask and under channel energy, without a test image.

    python benchmarks/choose_birds.py chosen --data CUB_200_2011 --weights FILE      # trains the network
    python benchmarks/new_ideas.py chosen --data CUB_200_2011 --weights FILE -o results/new-ideas

Takes a network that ``choose_birds.py`` has trained and its halves of train images, and scores GeM of φ under both
masks at 224 px, then with

- ``320 px``: larger images (the same pixels, enlarged), so that φ has 10 × 10 cells in place of 7 × 7;
- ``224 and 320 px``: the sum of both features, each of length 1;
- ``448 px``: larger still, 14 × 14 cells;
- ``closer look``: the smallest square of the 320 px image that holds all places where the mask is at least 0.4 of its
  maximum (and 0.4 of the side or more), enlarged to 224 px and embedded in its place; and both, summed;
- ``mirrored``: the sum of the features of an image and of its mirror image;
- ``two maps``: beside the map of the stage before the last one (pooling ``…-two-maps``);
- ``neighbors``: every feature, centered, replaced by its sum with those of its five nearest neighbors;
- ``local``: the 60 nearest images ordered anew by how well each of the 16 cells with the largest mask is found in the
  other image, and the reverse, in equal shares with the score.

For each idea: what it gains over the same mask at 224 px, with the 95 % interval over queries.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from choose_birds import BATCH, OWN_POWER, VARIANTS, at_stride_32, validation_source
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, normalize

from finesight.data.cache import cache_side, open_cache
from finesight.data.sources import ImageSource
from finesight.evaluation.bootstrap import paired_bootstrap
from finesight.evaluation.retrieval import retrieval
from finesight.features.encoder import Encoder
from finesight.io.progress import track
from finesight.nn.half_precision import require_half_precision
from finesight.nn.pooling import attention_mask, energy_map, enlarge, pool, pool_two_maps
from finesight.nn.poolings import EARLIER_WEIGHT
from finesight.paper.machine import record_measurement
from finesight.training.config import build_config

SMALL, LARGE, LARGEST, SHARE = 224, 320, 448, 0.5
NEIGHBORS, NEAREST, CELLS = 5, 60, 16
SEEN, LEAST_SIDE, GRID = 0.4, 0.4, 28  # of the closer look: share of the mask's maximum and of the side, cells
Embedded = dict[str, Tensor]


@torch.no_grad()
def embed(encoder: Encoder, source: ImageSource, size: int, *, half: bool, mirrored: bool) -> dict[str, Embedded]:
    """Return, by mask: GeM of φ, of two maps, the mask, and the 16 cells in which it is largest.

    Of images of 320 px, which are not mirrored, also GeM of the part where the mask is large.
    """
    cache = open_cache(source, cache_side(size))
    assert cache.source.splits is not None
    test = np.flatnonzero(cache.source.splits == "test")
    found: dict[str, dict[str, list[Tensor]]] = {}
    for rows in track(np.split(test, range(BATCH, len(test), BATCH)), -(-len(test) // BATCH), f"{size} px"):
        views = encoder.cached_views(cache, rows)
        phi, earlier = maps(encoder, views.flip(3) if mirrored else views, half=half)
        for name, mask in masks(encoder, phi).items():
            weights, cells = mask.flatten(1).topk(CELLS)
            local = phi.flatten(2).gather(2, cells[:, None].expand(-1, phi.shape[1], -1))  # (N, C, 16)
            parts = {
                "one": normalize(pool(phi, mask, gem=True)),
                "two": pool_two_maps(phi, earlier, mask, EARLIER_WEIGHT),
                "weights": weights / weights.sum(1, keepdim=True),
                "local": normalize(local, dim=1).transpose(1, 2),
            }
            if size == LARGE:
                near, _ = maps(encoder, cut_out(views, mask), half=half)
                parts["closer"] = normalize(pool(near, masks(encoder, near)[name], gem=True))
            for part, values in parts.items():
                found.setdefault(name, {}).setdefault(part, []).append(values)
    return {name: {part: torch.cat(values) for part, values in parts.items()} for name, parts in found.items()}


def maps(encoder: Encoder, views: Tensor, *, half: bool) -> tuple[Tensor, Tensor]:
    """Return φ and the map of the stage before it."""
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        made = encoder.backbone.outputs(views, folded=True, earlier=True)
    assert made.earlier is not None
    return made.phi.float(), made.earlier.float()


def masks(encoder: Encoder, phi: Tensor) -> dict[str, Tensor]:
    assert encoder.branch is not None
    return {
        "energy": attention_mask(energy_map(phi)),
        "rationale": attention_mask(encoder.branch(phi)) ** OWN_POWER,
    }


def cut_out(views: Tensor, mask: Tensor) -> Tensor:
    """Return the square around all places where the mask is large, enlarged. (N, 3, R, R), (N, H, W) -> (N, 3, S, S)"""
    fine = enlarge(mask, GRID, GRID)
    seen = fine >= SEEN * fine.amax((1, 2), keepdim=True)
    spans = []
    for along in (seen.any(1), seen.any(2)):  # x, y
        first, last = along.float().argmax(1), GRID - along.flip(1).float().argmax(1)
        spans.append(torch.stack([first, last]) / GRID)
    side = torch.stack([last - first for first, last in spans]).amax(0).clamp(min=LEAST_SIDE)
    middle = [((first + last) / 2).clamp(min=side / 2, max=1 - side / 2) for first, last in spans]
    place = torch.zeros(len(views), 2, 3)
    for axis in (0, 1):
        place[:, axis, axis], place[:, axis, 2] = side, 2 * middle[axis] - 1
    grid = affine_grid(place, [len(views), 3, SMALL, SMALL], align_corners=False)
    return grid_sample(views, grid, mode="bicubic", padding_mode="border", align_corners=False)


def with_neighbors(features: Tensor) -> Tensor:
    """Return each centered feature plus those of its nearest neighbors, weighed by their cosine."""
    centered = normalize(features - features.mean(0))
    cosines, nearest = (centered @ centered.T).topk(NEIGHBORS + 1)
    return normalize((centered[nearest] * cosines.clamp(min=0)[..., None]).sum(1))


def locally_matched(made: Embedded, labels: Tensor) -> dict[str, np.ndarray]:
    """Return whether the first image is of the class of each query, after its nearest ones are ordered anew."""
    scores = made["one"] @ made["one"].T
    scores.fill_diagonal_(-torch.inf)
    scores, nearest = scores.topk(NEAREST)
    cells, weights, first = made["local"], made["weights"], []
    for i, others in enumerate(nearest):
        cosines = torch.einsum("kc,jlc->jkl", cells[i], cells[others])
        there, back = (cosines.amax(2) * weights[i]).sum(1), (cosines.amax(1) * weights[others]).sum(1)
        first.append(others[(scores[i] + (there + back) / 2).argmax()])
    return {"rank1": (labels[torch.stack(first)] == labels).numpy()}


def scored(features: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    per_query = retrieval(features.numpy(), labels.numpy()).per_query
    return {key: per_query[key] for key in ("rank1", "mAP")}


def ideas(embedding: Callable[..., dict[str, Embedded]], labels: Tensor) -> dict[str, Any]:
    small, mirror = embedding(SMALL, mirrored=False), embedding(SMALL, mirrored=True)
    large, largest = embedding(LARGE, mirrored=False), embedding(LARGEST, mirrored=False)
    rows: dict[str, Any] = {}
    for mask in small:
        one, many = small[mask]["one"], large[mask]["one"]
        before = scored(one, labels)
        found = {
            f"{SMALL} px": before,
            f"{LARGE} px": scored(many, labels),
            f"{SMALL} and {LARGE} px": scored(normalize(one + many), labels),
            f"{LARGEST} px": scored(largest[mask]["one"], labels),
            "closer look": scored(large[mask]["closer"], labels),
            f"{LARGE} px and closer look": scored(normalize(many + large[mask]["closer"]), labels),
            "mirrored": scored(normalize(one + mirror[mask]["one"]), labels),
            "two maps": scored(small[mask]["two"], labels),
            f"{LARGE} px, two maps": scored(large[mask]["two"], labels),
            f"{SMALL} and {LARGE} px, two maps": scored(normalize(small[mask]["two"] + large[mask]["two"]), labels),
            "neighbors": scored(with_neighbors(one), labels),
            "local": locally_matched(small[mask], labels),
        }
        for name, own in found.items():
            row = rows.setdefault(name, {})[mask] = {key: round(100 * float(np.mean(own[key])), 2) for key in own}
            for key in own if name != f"{SMALL} px" else ():
                gained = paired_bootstrap(before[key], own[key])
                row[f"{key} gained"] = [round(value, 2) for value in (gained.mean, gained.low, gained.high)]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", choices=list(VARIANTS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--classes", type=int, nargs=2, default=(51, 150), metavar=("FIRST", "LAST"))
    parser.add_argument("--name", default="", help="of the data, where it is not the birds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/choose"))
    parser.add_argument("--half", action="store_true", help="maps in bfloat16")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if options.half:
        require_half_precision()
    source = validation_source(options.data, *options.classes)
    name = "-".join(filter(None, (options.name, options.variant, f"seed{options.seed}")))
    weights = {"backbone.weights": options.weights, "data": "-", "method": "lcr", "seed": options.seed}
    config = build_config({**VARIANTS[options.variant], **weights})
    trained = Encoder.load(options.runs / name)
    assert source.labels is not None
    assert source.splits is not None
    labels = torch.from_numpy(source.labels[source.splits == "test"])

    def embedding(size: int, *, mirrored: bool) -> dict[str, Embedded]:
        encoder = at_stride_32(trained, config, SHARE, size)
        return embed(encoder, source, size, half=options.half, mirrored=mirrored)

    rows = ideas(embedding, labels)
    words = [options.variant, "--seed", str(options.seed), "--data", options.data.absolute().name]
    words += ["--classes", *map(str, options.classes), *(["--name", options.name] if options.name else [])]
    words += ["--weights", Path(options.weights).name, *(["--half"] if options.half else [])]
    result = {"command": shlex.join(["python", "benchmarks/new_ideas.py", *words]), "rows": rows}
    record_measurement(result, options.out and options.out / f"{name}.json")
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
