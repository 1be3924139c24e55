"""Tensors of timm models under the names and in the shapes in which other libraries publish them.

Written down from the files that these libraries publish, name by name.
"""

import torch
from torch import Tensor

State = dict[str, Tensor]


def _depth(state: State) -> int:
    return len([name for name in state if name.startswith("blocks.") and name.endswith("norm1.weight")])


def both(new: str, old: str, state: State) -> State:
    return {f"{new}.{kind}": state[f"{old}.{kind}"] for kind in ("weight", "bias") if f"{old}.{kind}" in state}


def _three(names: tuple[str, str, str], old: str, state: State) -> State:
    out = {}
    for kind in ("weight", "bias"):
        if f"{old}.{kind}" in state:
            width = state[f"{old}.{kind}"].shape[0] // 3
            for number, name in enumerate(names):
                out[f"{name}.{kind}"] = state[f"{old}.{kind}"][number * width : (number + 1) * width]
    return out


def hf_vit(state: State) -> State:
    """ViTForImageClassification, as google/vit-base-patch16-224 and facebook/dino-vits16 are saved; DeiT's too."""
    out = {
        "vit.embeddings.cls_token": state["cls_token"],
        "vit.embeddings.position_embeddings": state["pos_embed"],
        **both("vit.embeddings.patch_embeddings.projection", "patch_embed.proj", state),
        **both("vit.layernorm", "norm", state),
        "vit.pooler.dense.weight": torch.ones(2, 2),
        "classifier.weight": torch.ones(2, 2),
    }
    if "dist_token" in state:
        out["vit.embeddings.distillation_token"] = state["dist_token"]
    for i in range(_depth(state)):
        new, old = f"vit.encoder.layer.{i}", f"blocks.{i}"
        parts = tuple(f"{new}.attention.attention.{part}" for part in ("query", "key", "value"))
        out |= _three(parts, f"{old}.attn.qkv", state)
        out |= both(f"{new}.attention.output.dense", f"{old}.attn.proj", state)
        out |= both(f"{new}.intermediate.dense", f"{old}.mlp.fc1", state)
        out |= both(f"{new}.output.dense", f"{old}.mlp.fc2", state)
        out |= both(f"{new}.layernorm_before", f"{old}.norm1", state)
        out |= both(f"{new}.layernorm_after", f"{old}.norm2", state)
    return out


def dinov2(state: State, first_position: Tensor) -> State:
    """The files of facebookresearch/dinov2.

    With registers, timm adds the position of the class token to the token itself and keeps the other positions;
    DINOv2 has ``first_position`` apart.
    """
    out = {"mask_token": torch.ones(1, state["cls_token"].shape[-1])}
    for name, tensor in state.items():
        swiglu = "blocks.0.mlp.fc1.weight" in state and len(state["blocks.0.mlp.fc1.weight"]) != len(
            state["blocks.0.mlp.fc2.weight"].T
        )
        new = name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3") if swiglu else name
        out[new] = tensor
    if "reg_token" in out:
        out["register_tokens"] = out.pop("reg_token")
        out["cls_token"] = out["cls_token"] - first_position
        out["pos_embed"] = torch.cat([first_position, out["pos_embed"]], 1)
    return out


def dinov2_in_training(state: State, chunk: int) -> State:
    """A teacher of facebookresearch/dinov2 whose blocks lie in chunks, wrapped by FSDP."""
    out = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[0] == "blocks":
            number = int(parts[1])
            name = f"blocks.{number // chunk}._fsdp_wrapped_module.{number}." + ".".join(parts[2:])
        out[f"backbone.{name}"] = tensor
    return out | {"dino_head.last_layer.weight_g": torch.ones(3)}


def hf_dinov2(state: State, first_position: Tensor) -> State:
    """Dinov2Model and Dinov2WithRegistersModel."""
    original = dinov2(state, first_position)
    out = {
        "embeddings.cls_token": original["cls_token"],
        "embeddings.mask_token": original["mask_token"],
        "embeddings.position_embeddings": original["pos_embed"],
        **both("embeddings.patch_embeddings.projection", "patch_embed.proj", state),
        **both("layernorm", "norm", state),
    }
    if "register_tokens" in original:
        out["embeddings.register_tokens"] = original["register_tokens"]
    for i in range(_depth(state)):
        new, old = f"encoder.layer.{i}", f"blocks.{i}"
        parts = tuple(f"{new}.attention.attention.{part}" for part in ("query", "key", "value"))
        out |= _three(parts, f"{old}.attn.qkv", state)
        out |= both(f"{new}.attention.output.dense", f"{old}.attn.proj", state)
        for norm in ("norm1", "norm2"):
            out |= both(f"{new}.{norm}", f"{old}.{norm}", state)
        for number in (1, 2):
            out[f"{new}.layer_scale{number}.lambda1"] = state[f"{old}.ls{number}.gamma"]
        if f"{old}.mlp.w12.weight" in original:
            out |= both(f"{new}.mlp.weights_in", f"{old}.mlp.w12", original)
            out |= both(f"{new}.mlp.weights_out", f"{old}.mlp.w3", original)
        else:
            for layer in ("fc1", "fc2"):
                out |= both(f"{new}.mlp.{layer}", f"{old}.mlp.{layer}", state)
    return out


def dinov3(state: State) -> State:
    """The files of facebookresearch/dinov3: the key's bias is masked, gated networks have w1, w2 and w3."""
    width = state["cls_token"].shape[-1]
    out = {
        "cls_token": state["cls_token"],
        "storage_tokens": state["reg_token"],
        "mask_token": torch.ones(1, width),
        "rope_embed.periods": torch.ones(4),
        **both("patch_embed.proj", "patch_embed.proj", state),
        **both("norm", "norm", state),
    }
    for i in range(_depth(state)):
        block = f"blocks.{i}"
        zero = torch.zeros(width)
        query, value = state.get(f"{block}.attn.q_bias", zero), state.get(f"{block}.attn.v_bias", zero)
        out[f"{block}.attn.qkv.weight"] = state[f"{block}.attn.qkv.weight"]
        out[f"{block}.attn.qkv.bias"] = torch.cat([query, zero + 1, value])
        out[f"{block}.attn.qkv.bias_mask"] = torch.cat([zero + 1, zero, zero + 1])
        for part in ("norm1", "norm2", "attn.proj"):
            out |= both(f"{block}.{part}", f"{block}.{part}", state)
        for number in (1, 2):
            out[f"{block}.ls{number}.gamma"] = state[f"{block}.gamma_{number}"]
        gated = f"{block}.mlp.fc1_g.weight" in state
        layers = {"w1": "fc1_g", "w2": "fc1_x", "w3": "fc2"} if gated else {"fc1": "fc1", "fc2": "fc2"}
        for new, old in layers.items():
            out |= both(f"{block}.mlp.{new}", f"{block}.mlp.{old}", state)
    return out


def hf_dinov3(state: State) -> State:
    """DINOv3ViTModel."""
    original = dinov3(state)
    out = {
        "embeddings.cls_token": original["cls_token"],
        "embeddings.mask_token": original["mask_token"],
        "embeddings.register_tokens": original["storage_tokens"],
        **both("embeddings.patch_embeddings", "patch_embed.proj", original),
        **both("norm", "norm", original),
    }
    for i in range(_depth(state)):
        new, old = f"layer.{i}", f"blocks.{i}"
        parts = tuple(f"{new}.attention.{part}_proj" for part in "qkv")
        out |= _three(parts, f"{old}.attn.qkv", original)
        del out[f"{new}.attention.k_proj.bias"]
        out |= both(f"{new}.attention.o_proj", f"{old}.attn.proj", original)
        for number in (1, 2):
            out |= both(f"{new}.norm{number}", f"{old}.norm{number}", original)
            out[f"{new}.layer_scale{number}.lambda1"] = original[f"{old}.ls{number}.gamma"]
        if f"{old}.mlp.w1.weight" in original:
            layers = {"gate_proj": "w1", "up_proj": "w2", "down_proj": "w3"}
        else:
            layers = {"up_proj": "fc1", "down_proj": "fc2"}
        for layer, source in layers.items():
            out |= both(f"{new}.mlp.{layer}", f"{old}.mlp.{source}", original)
    return out


def open_clip(state: State) -> State:
    """A ViT of open_clip or OpenAI, with a little of the text tower."""
    out = {
        "logit_scale": torch.ones(()),
        "token_embedding.weight": torch.ones(5, 4),
        "transformer.resblocks.0.ln_1.weight": torch.ones(4),
        "visual.proj": torch.ones(state["cls_token"].shape[-1], 4),
        "visual.class_embedding": state["cls_token"][0, 0],
        "visual.positional_embedding": state["pos_embed"][0],
        "visual.conv1.weight": state["patch_embed.proj.weight"],
        **both("visual.ln_pre", "norm_pre", state),
        **both("visual.ln_post", "norm", state),
    }
    for i in range(_depth(state)):
        new, old = f"visual.transformer.resblocks.{i}", f"blocks.{i}"
        out[f"{new}.attn.in_proj_weight"] = state[f"{old}.attn.qkv.weight"]
        out[f"{new}.attn.in_proj_bias"] = state[f"{old}.attn.qkv.bias"]
        for name, source in {
            "attn.out_proj": "attn.proj",
            "ln_1": "norm1",
            "ln_2": "norm2",
            "mlp.c_fc": "mlp.fc1",
            "mlp.c_proj": "mlp.fc2",
        }.items():
            out |= both(f"{new}.{name}", f"{old}.{source}", state)
    return out


def hf_clip(state: State) -> State:
    """CLIPModel and SiglipModel, with a little of the text tower."""
    out = {
        "logit_scale": torch.ones(()),
        "text_model.embeddings.token_embedding.weight": torch.ones(5, 4),
        "vision_model.embeddings.position_embedding.weight": state["pos_embed"][0],
        **both("vision_model.embeddings.patch_embedding", "patch_embed.proj", state),
        **both("vision_model.post_layernorm", "norm", state),
    }
    if "cls_token" in state:
        out["vision_model.embeddings.class_embedding"] = state["cls_token"][0, 0]
        out |= both("vision_model.pre_layrnorm", "norm_pre", state)
    if "attn_pool.latent" in state:
        head = "vision_model.head"
        out[f"{head}.probe"] = state["attn_pool.latent"]
        for kind in ("weight", "bias"):
            query_key_value = [state[f"attn_pool.{part}.{kind}"] for part in ("q", "kv")]
            out[f"{head}.attention.in_proj_{kind}"] = torch.cat(query_key_value)
        out |= both(f"{head}.attention.out_proj", "attn_pool.proj", state)
        out |= both(f"{head}.layernorm", "attn_pool.norm", state)
        for layer in ("fc1", "fc2"):
            out |= both(f"{head}.mlp.{layer}", f"attn_pool.mlp.{layer}", state)
    for i in range(_depth(state)):
        new, old = f"vision_model.encoder.layers.{i}", f"blocks.{i}"
        parts = tuple(f"{new}.self_attn.{part}_proj" for part in "qkv")
        out |= _three(parts, f"{old}.attn.qkv", state)
        for name, source in {
            "self_attn.out_proj": "attn.proj",
            "layer_norm1": "norm1",
            "layer_norm2": "norm2",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
        }.items():
            out |= both(f"{new}.{name}", f"{old}.{source}", state)
    return out
