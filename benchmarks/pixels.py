"""How far the pixels that a network sees are from those of timm's own transform, on photos.

    python benchmarks/pixels.py --data CUB_200_2011 -o results/backbones/pixels.json

Levels are of 255. Photos differ where the resized long side is not a whole number of pixels (timm cuts it off,
FineSight rounds it to the nearest) and where a large JPEG is decoded at a smaller scale.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from timm.data import create_transform

from finesight.data.geometry import Framing
from finesight.data.sources import open_source
from finesight.features.preprocess import picture_view
from finesight.paper.machine import record_measurement

FRAMINGS = {
    "vit_small_patch14_dinov2": Framing(224, 1.0, "bicubic"),
    "vit_base_patch16_siglip_224": Framing(224, 0.9, "bicubic"),
    "convnext_base.fb_in22k_ft_in1k_384": Framing(384, 1.0, "bicubic", "squash"),
    "resnet50": Framing(224),
}


def apart(files: list[Path], framing: Framing) -> dict[str, float]:
    size = (3, framing.resolution, framing.resolution)
    settings = {"crop_pct": framing.crop_pct, "interpolation": framing.interpolation, "crop_mode": framing.crop_mode}
    transform: Any = create_transform(input_size=size, mean=(0, 0, 0), std=(1, 1, 1), **settings)
    differences = []
    for file in files:
        with Image.open(file) as image:
            theirs = (transform(image.convert("RGB")).permute(1, 2, 0).numpy() * 255).round()
        differences.append(float(np.abs(picture_view(file, framing).pixels - theirs).mean()))
    equal = sum(difference == 0 for difference in differences)
    return {"mean": round(float(np.mean(differences)), 2), "largest": round(max(differences), 2), "equal": equal}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    source = open_source(options.data)
    chosen = np.linspace(0, len(source) - 1, options.images).round().astype(int)
    files = [Path(source.file(int(i))) for i in chosen]
    found = {name: apart(files, framing) for name, framing in FRAMINGS.items()}
    command = f"python benchmarks/pixels.py --data {Path(options.data).name} --images {options.images}"
    print(record_measurement({"command": command, "images": len(files), "levels": found}, options.out))
