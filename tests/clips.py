"""A small CLIP model that open_clip made, as the hub has them, and a run whose encoder is its image side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from timm.models import register_model

from finesight.features.encoder import Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.nn.backbone_config import BackboneConfig

SIDE, MEAN, STD = 32, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@register_model
def tiny_clip(pretrained: bool = False, **options: Any) -> Any:
    """CLIP's image side, two blocks."""
    small = {"embed_dim": 64, "depth": 2, "num_heads": 2, "img_size": SIDE}
    return timm.models.vit_base_patch16_clip_224(pretrained, **{**small, **options})


def make_clip(folder: Path, seed: int = 0) -> Path:
    """Write a model with random weights: open_clip_config.json and open_clip_model.safetensors. -> the folder"""
    import open_clip

    folder.mkdir(parents=True)
    vision = {"image_size": SIDE, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    config = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}
    torch.manual_seed(seed)
    model = open_clip.CLIP(**config)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    state["visual.positional_embedding"] *= 30  # else all pictures are nearly alike to random weights
    state["visual.conv1.weight"] *= 30
    preprocess = {"mean": MEAN, "std": STD}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    save_file(state, folder / "open_clip_model.safetensors")
    return folder


def clip_run(run: Path, model: Path, pooling: str = "class-token") -> Path:
    """Save the encoder that ``finesight train --method frozen`` makes of the model's weights. -> the run"""
    backbone = BackboneConfig(name="tiny_clip", weights=str(model / "open_clip_model.safetensors"))
    config = EncoderConfig(method="frozen", resolution=SIDE, pooling=pooling, backbone=backbone, mean=MEAN, std=STD)
    Encoder.untrained(config).save(run / "encoder")
    return run
