"""How maps with negative values are best pooled: real pretrained features, train images of CUB-200-2011 only.

    python benchmarks/signed_maps.py maps --data CUB_200_2011 --weights resnet18_imagenet.safetensors
    python benchmarks/signed_maps.py tokens --data CUB_200_2011 --weights resnet18_imagenet.safetensors --seed 0

``maps``: the last map of a pretrained ResNet before its last ReLU, as it is and with every cell layer-normed as the
tokens of a vision transformer are; also with planted artefact cells, which are long and alike in all images. Train
images of the last 50 classes, each searched among all others.

``tokens``: a small vision transformer (3 blocks, class token) that is trained here on the maps of the frozen
ResNet-18, with the classes of the train images of the first 150 classes; class token and mean of the patches are
classified apart, so that both have learned. The last 50 classes, which it has not seen, are searched.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.layers import set_fused_attn
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from finesight.api import frozen
from finesight.data.cache import cache_side, open_cache
from finesight.data.sources import open_source
from finesight.evaluation.retrieval import retrieval
from finesight.io.progress import track
from finesight.nn.backbone_config import BackboneConfig
from finesight.nn.pooling import attention_mask
from finesight.paper.machine import record_measurement

FIRST_TEST = 150  # classes from here on are searched, those before are learned
BATCH, POWER = 64, 3.0
ARTEFACTS, FACTOR = 2, 10.0  # cells of each image that are planted, and how much longer than the others they are
Map = Callable[[Tensor], Tensor]


# --- candidates: (N, C, H, W) -> (N, H, W), and (N, C, H, W), (N, H, W) -> (N, C) -------------------------------------


def center(phi: Tensor) -> Tensor:
    return phi - phi.mean((2, 3), keepdim=True)


ENERGIES: dict[str, Map] = {
    "sum": lambda phi: phi.sum(1),
    "positive sum": lambda phi: phi.clamp(min=0).sum(1),
    "norm": lambda phi: phi.norm(dim=1),
    "centered norm": lambda phi: center(phi).norm(dim=1),
}


def mean(phi: Tensor, mask: Tensor) -> Tensor:
    return (phi * mask[:, None]).sum((2, 3)) / mask.sum((1, 2))[:, None]


def clamped_gem(phi: Tensor, mask: Tensor) -> Tensor:
    return mean(phi.clamp(min=1e-6).pow(POWER), mask).pow(1 / POWER)


def signed_gem(phi: Tensor, mask: Tensor) -> Tensor:
    powers = mean(phi.sign() * phi.abs().pow(POWER), mask)
    return powers.sign() * powers.abs().pow(1 / POWER)


def shifted_gem(phi: Tensor, mask: Tensor) -> Tensor:
    lowest = phi.amin((2, 3), keepdim=True)
    return mean((phi - lowest).pow(POWER), mask).clamp(min=0).pow(1 / POWER) + lowest[:, :, 0, 0]


MEANS = {"mean": mean, "clamped GeM": clamped_gem, "signed GeM": signed_gem, "shifted GeM": shifted_gem}


def limits(values: Tensor, k: float) -> Tensor:
    """Median + k times the deviation that the median distance from the median stands for. (N, P) -> (N, 1)"""
    middle = values.median(1, keepdim=True).values
    return middle + k * 1.4826 * (values - middle).abs().median(1, keepdim=True).values


def clipped(phi: Tensor, k: float) -> Tensor:
    """Shorten the tokens that are longer than the limit."""
    norms = phi.flatten(2).norm(dim=1)
    scale = (limits(norms, k) / norms.clamp(min=1e-12)).clamp(max=1)
    return phi * scale.view(len(phi), 1, *phi.shape[2:])


def clipped_energy(phi: Tensor, k: float, energy: Map) -> Tensor:
    values = energy(phi)
    return values.clamp(max=limits(values.flatten(1), k)[:, :, None])


CLIPS = (3.0, 5.0, 10.0)


def features(phi: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Every mean without a mask and under every energy; and all with the norms of the tokens limited."""
    for limit in ("", *(f", limit {k:g}" for k in CLIPS)):
        k = float(limit.rpartition(" ")[2]) if limit else 0.0
        seen = clipped(phi, k) if limit else phi
        whole = torch.ones_like(phi[:, 0])
        energies = {"": whole}
        for name, energy in ENERGIES.items():
            values = clipped_energy(seen, k, energy) if limit else energy(seen)
            energies[f"{name}, "] = attention_mask(values) + 1e-12
        for words, mask in energies.items():
            for kind, pooled in MEANS.items():
                yield f"{words}{kind}{limit}", pooled(seen, mask)


def scores(found: dict[str, list[Tensor]], labels: np.ndarray) -> dict[str, dict[str, float]]:
    rows = {}
    for name, parts in found.items():
        summary = retrieval(torch.cat(parts).numpy(), labels).summary()
        rows[name] = {key: round(float(summary[key]), 2) for key in ("rank1", "mAP")}
    return dict(sorted(rows.items(), key=lambda row: -row[1]["mAP"]))


# --- real maps --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def layer4(options: argparse.Namespace, first: int, last: int) -> tuple[Tensor, np.ndarray]:
    """Return the maps before the last ReLU, in half precision, and the labels of train images of these classes."""
    source = open_source(options.data).split("train")
    assert source.labels is not None
    source = source.select((source.labels >= first) & (source.labels < last))
    file = options.maps and options.maps / f"{Path(options.weights).stem}-{first}-{last}.pt"
    if file and file.exists():
        return torch.load(file), source.labels
    name = "resnet50" if "resnet50" in Path(options.weights).name else "resnet18"
    encoder = frozen(BackboneConfig(name=name, weights=options.weights), 224)
    block = encoder.backbone.model.layer4[-1]
    setattr(block, "act3" if name == "resnet50" else "act2", nn.Identity())
    cache = open_cache(source, cache_side(224), cache_dir=options.cache_dir)
    maps = []
    for start in track(range(0, len(source), 16), -(-len(source) // 16), "embedding"):
        rows = range(start, min(start + 16, len(source)))
        maps.append(encoder.maps(encoder.cached_views(cache, rows)).half())
    phi = torch.cat(maps)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(phi, file)
    return phi, source.labels


def plant(phi: Tensor, generator: torch.Generator) -> Tensor:
    """Put long tokens of one common direction into random cells of each image."""
    flat = phi.flatten(2).clone()
    direction = F.normalize(torch.randn(phi.shape[1], generator=torch.Generator().manual_seed(1)), dim=0)
    for image in flat:
        cells = torch.randperm(flat.shape[2], generator=generator)[:ARTEFACTS]
        image[:, cells] = FACTOR * image.norm(dim=0).median() * direction[:, None]
    return flat.view_as(phi)


def compare_maps(options: argparse.Namespace) -> dict[str, Any]:
    phi, labels = layer4(options, FIRST_TEST, 200)
    kinds: dict[str, Map] = {
        "after the ReLU": lambda x: x.clamp(min=0),
        "before the ReLU": lambda x: x,
        "before the ReLU, layer-normed cells": lambda x: F.layer_norm(x.movedim(1, 3), x.shape[1:2]).movedim(3, 1),
    }
    found: dict[str, dict[str, list[Tensor]]] = {}
    draw = torch.Generator().manual_seed(0)
    for part in track(torch.split(phi, BATCH), -(-len(phi) // BATCH), "pooling"):
        for kind, change in kinds.items():
            maps = change(part.float())
            for name, feature in features(maps):
                found.setdefault(kind, {}).setdefault(name, []).append(feature)
            if kind != "after the ReLU":
                for name, feature in features(plant(maps, draw)):
                    found.setdefault(f"{kind}, artefacts planted", {}).setdefault(name, []).append(feature)
    return {kind: scores(rows, labels) for kind, rows in found.items()}


# --- tokens of a small vision transformer -----------------------------------------------------------------------------


def train_tokens(phi: Tensor, labels: np.ndarray, seed: int, epochs: int) -> VisionTransformer:
    """Return the transformer after training on maps (N, C, H, W), each cell a patch."""
    torch.manual_seed(seed)
    set_fused_attn(False)  # attention weights can then be read off
    model = VisionTransformer(
        img_size=phi.shape[2], patch_size=1, in_chans=phi.shape[1], embed_dim=128, depth=3, num_heads=4, num_classes=0
    )
    heads = nn.ModuleList(nn.Linear(128, FIRST_TEST) for _ in range(2))
    steps = epochs * (len(phi) // BATCH)
    optimizer = torch.optim.AdamW([*model.parameters(), *heads.parameters()], lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)
    known = torch.from_numpy(labels)
    for epoch in range(epochs):
        losses = []
        for rows in torch.randperm(len(phi))[: len(phi) // BATCH * BATCH].split(BATCH):
            maps = phi[rows].float()
            maps = torch.where(torch.rand(BATCH, 1, 1, 1) < 0.5, maps.flip(3), maps)
            tokens = model.forward_features(F.dropout2d(maps, 0.1))
            logits = heads[0](tokens[:, 0]), heads[1](tokens[:, 1:].mean(1))
            loss = sum(F.cross_entropy(x, known[rows], label_smoothing=0.1) for x in logits)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"seed {seed}, epoch {epoch + 1}: loss {np.mean(losses):.3f}", flush=True)
    return model.eval()


@torch.no_grad()
def compare_tokens(options: argparse.Namespace) -> dict[str, Any]:
    with torch.enable_grad():
        model = train_tokens(*layer4(options, 0, FIRST_TEST), options.seed, options.epochs)
    weights: list[Tensor] = []
    model.blocks[-1].attn.attn_drop.register_forward_hook(lambda module, given, result: weights.append(given[0]))
    before: list[Tensor] = []
    model.norm.register_forward_hook(lambda module, given, result: before.append(given[0]))
    test, labels = layer4(options, FIRST_TEST, 200)
    found: dict[str, list[Tensor]] = {}
    for part in torch.split(test, BATCH):
        tokens = model.forward_features(part.float())
        rows, columns = part.shape[2:]
        class_token, phi = tokens[:, 0], tokens[:, 1:].mT.reshape(len(part), -1, rows, columns)
        attention = weights.pop()[:, :, 0, 1:].mean(1).view(len(part), rows, columns)
        inner = before.pop()[:, 1:].mT.reshape(phi.shape)  # before the final norm
        unit = F.normalize(class_token, dim=1)
        named = dict(features(phi))
        further = {"attention": attention, "norm before the final norm": inner.norm(dim=1)}
        for k in CLIPS:
            further[f"attention, limit {k:g}"] = clipped_energy(attention, k, lambda x: x)
        for name, energy in further.items():
            named |= {f"{name}, {kind}": pooled(phi, attention_mask(energy) + 1e-12) for kind, pooled in MEANS.items()}
        beside = {
            f"class token and {name}": torch.cat([unit, F.normalize(feature, dim=1)], 1)
            for name, feature in (
                ("mean", named["mean"]),
                ("signed GeM", named["signed GeM"]),
                ("attention", named["attention, mean"]),
                ("centered norm, signed GeM", named["centered norm, signed GeM"]),
            )
        }
        for name, feature in {"class token": class_token, **beside, **named}.items():
            found.setdefault(name, []).append(feature)
    return {"tokens": scores(found, labels)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["maps", "tokens"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("--maps", type=Path, help="a folder that keeps the maps for another call")
    parser.add_argument("-o", "--out", type=Path, default=Path("results/signed-maps"))
    options = parser.parse_args()
    rows = compare_maps(options) if options.part == "maps" else compare_tokens(options)
    weights = Path(options.weights)
    name = f"{weights.stem}" if options.part == "maps" else f"tokens-seed{options.seed}"
    words = [options.part, "--data", options.data.absolute().name, "--weights", weights.name]
    words += ["--seed", str(options.seed), "--epochs", str(options.epochs)] if options.part == "tokens" else []
    result = {"command": shlex.join(["python", "benchmarks/signed_maps.py", *words]), "scores": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    record_measurement(result, options.out / f"{name}.json")
    print(json.dumps({kind: dict(list(found.items())[:12]) for kind, found in rows.items()}, indent=1))


if __name__ == "__main__":
    main()
