"""What the color rule sees in train images: neighbors that stay when hues turn and when images are mirrored, by seed.

    python benchmarks/choose_colors.py --weights RESNET50 birds=CUB_200_2011 cars=Stanford_Cars \\
        -o results/choosing/colors.json

Each seed looks at 256 other images. The rule asks how large the one share is relative to the other.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from finesight.api import frozen
from finesight.data.cache import cache_side, open_cache
from finesight.data.sources import open_source
from finesight.nn.backbone_config import BackboneConfig
from finesight.paper.machine import record_measurement
from finesight.training.color_rule import MILD, choose_colors
from finesight.training.gentle import GENTLE
from finesight.training.save_encoder import FROZEN_POOLING


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("domains", nargs="+", metavar="NAME=DATA")
    parser.add_argument("--weights", required=True, help="an ImageNet ResNet-50")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    resolution = int(GENTLE["views.resolution"])
    encoder = frozen(BackboneConfig(name="resnet50", weights=options.weights), resolution, FROZEN_POOLING)
    rows = []
    for domain, _, data in (text.partition("=") for text in options.domains):
        cache = open_cache(open_source(data).split("train"), cache_side(resolution), cache_dir=options.cache_dir)
        for seed in range(options.seeds):
            found = choose_colors(encoder, cache, np.arange(len(cache)), resolution, seed)
            facts = {"hue": round(found.hue, 4), "mirror": round(found.mirror, 4)}
            colors = "mild" if found.settings == MILD else "strong"
            rows.append({"domain": domain, "seed": seed, **facts, "colors": colors})
            print(rows[-1], round(found.hue / found.mirror, 3), flush=True)
    print(record_measurement({"images": found.images, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
