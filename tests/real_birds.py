"""Find CUB-200-2011 and the ResNet-50 weights that some tests need; skip those tests where they are not there.

They are looked for in the environment variables FINESIGHT_CUB and FINESIGHT_WEIGHTS, then beside the project.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
_SHARED = PROJECT.parent / "shared"
CUB = Path(os.environ.get("FINESIGHT_CUB") or _SHARED / "data" / "CUB_200_2011")
WEIGHTS = Path(os.environ.get("FINESIGHT_WEIGHTS") or _SHARED / "weights" / "resnet50_imagenet_caffe.safetensors")
NO_CUB = (
    f"CUB-200-2011 is not in {CUB}: get CUB_200_2011.tgz from https://www.vision.caltech.edu/datasets/cub_200_2011/, "
    "unpack it and set FINESIGHT_CUB to the folder CUB_200_2011"
)
NO_WEIGHTS = (
    f"there are no ImageNet weights of a Caffe ResNet-50 in {WEIGHTS}: set FINESIGHT_WEIGHTS to a .safetensors file "
    "with the names of torchvision's resnet50"
)

needs_weights = pytest.mark.skipif(not WEIGHTS.is_file(), reason=NO_WEIGHTS)


def cub_root() -> Path:
    """Return the folder of CUB-200-2011; skip the test that asks if there is none."""
    if not (CUB / "images.txt").is_file():
        pytest.skip(NO_CUB)
    return CUB
