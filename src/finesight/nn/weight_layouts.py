"""How other libraries name the tensors of a network, each layout as a table of renamings.

A table leads to timm's names, or to those of the network's authors where timm itself converts these (DINOv2, DINOv3,
OpenAI's CLIP, ConvNeXt, Swin). What only timm's conversion knows, such as another grid of positions, is left to it.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_Rule = tuple[str, str | Callable[[re.Match[str]], str]]


@dataclass(frozen=True)
class Layout:
    """The names that a library gives to a kind of network."""

    title: str
    anchor: str  # pattern of a name that every such file has
    rules: tuple[_Rule, ...]  # applied to each name, one after the other

    def prefixes(self, names: list[str]) -> list[str]:
        """Return what stands before the layout's own names, for each network of a file that has the layout."""
        found = (re.fullmatch(rf"((?:.*\.)?){self.anchor}", name) for name in names)
        return list(dict.fromkeys(match[1] for match in found if match))

    def convert(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors under their new names, with query, key and value in one tensor."""
        renamed = {}
        for name, tensor in state.items():
            for pattern, new in self.rules:
                name = re.sub(pattern, new, name)
            renamed[name] = tensor[None] if name == "pos_embed" and tensor.ndim == 2 else tensor
        return _split_pool(_join_qkv(renamed))


def _join_qkv(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with ``attn.q``, ``attn.k`` and ``attn.v`` joined to ``attn.qkv``; no bias of a key means 0."""
    joined, parts = {}, defaultdict[tuple[str, str], dict[str, Tensor]](dict)
    for name, tensor in state.items():
        if match := re.fullmatch(r"(.+\.attn)\.([qkv])\.(weight|bias)", name):
            parts[match[1], match[3]][match[2]] = tensor
        else:
            joined[name] = tensor
    for (block, kind), part in parts.items():
        if kind == "bias" and "k" not in part and "q" in part:
            part["k"] = torch.zeros_like(part["q"])
        if len(part) == 3:
            joined[f"{block}.qkv.{kind}"] = torch.cat([part[letter] for letter in "qkv"])
        else:
            joined |= {f"{block}.{letter}.{kind}": tensor for letter, tensor in part.items()}
    return joined


def _split_pool(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with the joined query, key and value of an attention pooling as timm has them."""
    for kind in ("weight", "bias"):
        joined = state.pop(f"attn_pool.in_proj_{kind}", None)
        if joined is not None:
            width = len(joined) // 3
            state |= {f"attn_pool.q.{kind}": joined[:width], f"attn_pool.kv.{kind}": joined[width:]}
    return state


def _plus_one(form: str) -> Callable[[re.Match[str]], str]:
    """Return a replacement that counts the first group from 1 instead of 0."""
    return lambda match: form.format(int(match[1]) + 1, *match.groups()[1:])


def _halved(form: str) -> Callable[[re.Match[str]], str]:
    """Return a replacement for torchvision's ``features``, where stages and what is between them take turns."""
    return lambda match: form.format(int(match[1]) // 2, *match.groups()[1:])


_LAYER_SCALE: _Rule = (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma")
_DINOV3: tuple[_Rule, ...] = (
    (r"^embeddings\.register_tokens$", "storage_tokens"),
    (r"^embeddings\.((?:cls|mask)_token)$", r"\1"),
    (r"^embeddings\.patch_embeddings\.", "patch_embed.proj."),
    (r"^layer\.(\d+)\.", r"blocks.\1."),
    (r"\.attention\.([qkv])_proj\.", r".attn.\1."),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    _LAYER_SCALE,
)

LAYOUTS = (
    Layout(
        "Hugging Face ViT, DINOv2 or Swin",
        r"embeddings\.patch_embeddings\.projection\.weight",
        (
            (r"^embeddings\.((?:cls|mask)_token|register_tokens)$", r"\1"),
            (r"^embeddings\.distillation_token$", "dist_token"),
            (r"^embeddings\.position_embeddings$", "pos_embed"),
            (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
            (r"^embeddings\.norm\.", "patch_embed.norm."),
            (r"^encoder\.layer\.(\d+)\.", r"blocks.\1."),
            (r"^encoder\.layers\.(\d+)\.", r"layers.\1."),
            (r"\.layernorm_before\.", ".norm1."),
            (r"\.layernorm_after\.", ".norm2."),
            (r"\.attention\.(?:attention|self)\.([qkv])(?:uery|ey|alue)\.", r".attn.\1."),
            (r"\.attention\.self\.", ".attn."),
            (r"\.attention\.output\.dense\.", ".attn.proj."),
            (r"\.intermediate\.dense\.", ".mlp.fc1."),
            (r"\.output\.dense\.", ".mlp.fc2."),
            (r"\.mlp\.weights_in\.", ".mlp.w12."),
            (r"\.mlp\.weights_out\.", ".mlp.w3."),
            _LAYER_SCALE,
            (r"^layernorm\.", "norm."),
        ),
    ),
    Layout(
        "Hugging Face DINOv3",
        r"layer\.0\.attention\.q_proj\.weight",
        (*_DINOV3, (r"\.mlp\.up_proj\.", ".mlp.fc1."), (r"\.mlp\.down_proj\.", ".mlp.fc2.")),
    ),
    Layout(
        "Hugging Face DINOv3",
        r"layer\.0\.mlp\.gate_proj\.weight",
        (
            *_DINOV3,
            (r"\.mlp\.gate_proj\.", ".mlp.w1."),
            (r"\.mlp\.up_proj\.", ".mlp.w2."),
            (r"\.mlp\.down_proj\.", ".mlp.w3."),
        ),
    ),
    Layout(
        "Hugging Face CLIP or SigLIP",
        r"embeddings\.patch_embedding\.weight",
        (
            (r"^embeddings\.class_embedding$", "cls_token"),
            (r"^embeddings\.patch_embedding\.", "patch_embed.proj."),
            (r"^embeddings\.position_embedding\.weight$", "pos_embed"),
            (r"^pre_layrnorm\.", "norm_pre."),  # spelled so in every such file
            (r"^post_layernorm\.", "norm."),
            (r"^encoder\.layers\.(\d+)\.", r"blocks.\1."),
            (r"\.self_attn\.([qkv])_proj\.", r".attn.\1."),
            (r"\.self_attn\.out_proj\.", ".attn.proj."),
            (r"\.layer_norm([12])\.", r".norm\1."),
            (r"^head\.probe$", "attn_pool.latent"),
            (r"^head\.attention\.out_proj\.", "attn_pool.proj."),
            (r"^head\.attention\.", "attn_pool."),
            (r"^head\.layernorm\.", "attn_pool.norm."),
            (r"^head\.mlp\.", "attn_pool.mlp."),
        ),
    ),
    Layout(
        "Hugging Face ResNet",
        r"embedder\.embedder\.convolution\.weight",
        (
            (r"^embedder\.embedder\.convolution\.", "conv1."),
            (r"^embedder\.embedder\.normalization\.", "bn1."),
            (r"^encoder\.stages\.(\d+)\.layers\.(\d+)\.", _plus_one("layer{}.{}.")),
            (r"\.layer\.(\d)\.convolution\.", _plus_one(".conv{}.")),
            (r"\.layer\.(\d)\.normalization\.", _plus_one(".bn{}.")),
            (r"\.shortcut\.convolution\.", ".downsample.0."),
            (r"\.shortcut\.normalization\.", ".downsample.1."),
        ),
    ),
    Layout(
        "Hugging Face ConvNeXt",
        r"encoder\.stages\.0\.layers\.0\.dwconv\.weight",
        (
            (r"^embeddings\.patch_embeddings\.", "downsample_layers.0.0."),
            (r"^embeddings\.layernorm\.", "downsample_layers.0.1."),
            (r"^encoder\.stages\.(\d+)\.downsampling_layer\.", r"downsample_layers.\1."),
            (r"^encoder\.stages\.(\d+)\.layers\.(\d+)\.", r"stages.\1.\2."),
            (r"(^|\.)layernorm\.", r"\1norm."),
            (r"\.layer_scale_parameter$", ".gamma"),
            (r"\.grn\.weight$", ".grn.gamma"),
            (r"\.grn\.bias$", ".grn.beta"),
        ),
    ),
    Layout(
        "Hugging Face DINOv3 ConvNeXt",
        r"stages\.0\.layers\.0\.depthwise_conv\.weight",
        (
            (r"^stages\.(\d+)\.downsample_layers\.", r"downsample_layers.\1."),
            (r"^stages\.(\d+)\.layers\.(\d+)\.", r"stages.\1.\2."),
            (r"\.depthwise_conv\.", ".dwconv."),
            (r"\.pointwise_conv([12])\.", r".pwconv\1."),
            (r"(^|\.)layer_norm\.", r"\1norm."),
        ),
    ),
    Layout(
        "torchvision ViT",
        r"encoder\.layers\.encoder_layer_0\.ln_1\.weight",
        (
            (r"^class_token$", "cls_token"),
            (r"^conv_proj\.", "patch_embed.proj."),
            (r"^encoder\.pos_embedding$", "pos_embed"),
            (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
            (r"^encoder\.ln\.", "norm."),
            (r"\.ln_([12])\.", r".norm\1."),
            (r"\.self_attention\.in_proj_", ".attn.qkv."),
            (r"\.self_attention\.out_proj\.", ".attn.proj."),
            (r"\.mlp\.(?:0|linear_1)\.", ".mlp.fc1."),
            (r"\.mlp\.(?:3|linear_2)\.", ".mlp.fc2."),
            (r"^heads\.", "head."),
        ),
    ),
    Layout(
        "torchvision Swin",
        r"features\.1\.0\.attn\.relative_position_bias_table",
        (
            (r"^features\.0\.0\.", "patch_embed.proj."),
            (r"^features\.0\.2\.", "patch_embed.norm."),
            (r"^features\.([1357])\.", _halved("layers.{}.blocks.")),
            (r"^features\.([246])\.", _halved("layers.{}.downsample.")),
            (r"\.mlp\.0\.", ".mlp.fc1."),
            (r"\.mlp\.3\.", ".mlp.fc2."),
            (r"^head\.", "head.fc."),
        ),
    ),
    Layout(
        "torchvision ConvNeXt",
        r"features\.1\.0\.layer_scale",
        (
            (r"^features\.0\.", "stem."),
            (r"^features\.([1357])\.(\d+)\.", _halved("stages.{}.blocks.{}.")),
            (r"^features\.([246])\.", _halved("stages.{}.downsample.")),
            (r"\.block\.0\.", ".conv_dw."),
            (r"\.block\.2\.", ".norm."),
            (r"\.block\.3\.", ".mlp.fc1."),
            (r"\.block\.5\.", ".mlp.fc2."),
            (r"\.layer_scale$", ".gamma"),
            (r"^classifier\.0\.", "head.norm."),
            (r"^classifier\.2\.", "head.fc."),
        ),
    ),
    Layout(
        "numbered ResNet",  # nn.Sequential(*list(resnet.children())[:-1]), in many versions of BYOL and SimCLR
        r"4\.0\.conv1\.weight",
        (
            (r"^0\.", "conv1."),
            (r"^1\.", "bn1."),
            (r"^([4-7])\.", lambda match: f"layer{int(match[1]) - 3}."),
        ),
    ),
    Layout("open_clip", r"(?:class_embedding|attnpool\.positional_embedding)", ((r"^", "visual."),)),
)
