"""A small network of each kind that FineSight can use, for tests: timm's own small ones, and others made small.

Importing this makes the names of ``MADE`` known to timm in this process.
"""

from __future__ import annotations

from typing import Any

import timm
from timm.models import register_model

# each kind -> pixels of its images
FAMILIES = {
    "test_vit": 32,  # tokens after a class token
    "tiny_registers": 28,  # tokens after a class token and four registers, patches of 14 px
    "tiny_rotary": 28,  # rotary position embeddings
    "test_vit_relpos": 160,  # tokens, one size only
    "tiny_hybrid": 64,  # a transformer on a ResNet's map
    "tiny_swin": 64,  # channels last, windows
    "test_mambaout": 64,  # channels last
    "test_coatnet": 160,  # convolutions, then attention; one size only
    "test_convnext": 64,
    "test_efficientnet": 64,
    "test_nfnet": 64,  # no norms, weights made anew at each call
}


@register_model
def tiny_registers(pretrained: bool = False, **options: Any) -> Any:
    """DINOv2 with registers, two blocks."""
    small = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 56}
    return timm.models.vit_small_patch14_reg4_dinov2(pretrained, **{**small, **options})


@register_model
def tiny_rotary(pretrained: bool = False, **options: Any) -> Any:
    """EVA-02, two blocks."""
    small = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 56}
    return timm.models.eva02_tiny_patch14_224(pretrained, **{**small, **options})


@register_model
def tiny_hybrid(pretrained: bool = False, **options: Any) -> Any:
    """A ViT on the map of a small ResNet, two blocks."""
    small = {"embed_dim": 32, "depth": 2, "num_heads": 2}
    return timm.models.vit_tiny_r_s16_p8_224(pretrained, **{**small, **options})


@register_model
def tiny_swin(pretrained: bool = False, **options: Any) -> Any:
    """Swin, one block a stage."""
    small = {"embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}
    return timm.models.swin_tiny_patch4_window7_224(pretrained, **{**small, **options})
