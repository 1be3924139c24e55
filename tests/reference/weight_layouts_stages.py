"""The same for networks of stages: ResNet, ConvNeXt and Swin."""

import torch

from reference.weight_layouts import State, both


def hf_resnet(state: State) -> State:
    """ResNetForImageClassification, as microsoft/resnet-18 is saved."""
    out = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[0] == "conv1":
            new = f"embedder.embedder.convolution.{parts[1]}"
        elif parts[0] == "bn1":
            new = f"embedder.embedder.normalization.{parts[1]}"
        elif parts[0] == "fc":
            new = f"classifier.1.{parts[1]}"
        else:
            block = f"encoder.stages.{int(parts[0][-1]) - 1}.layers.{parts[1]}"
            if parts[2] == "downsample":
                new = f"{block}.shortcut.{('convolution', 'normalization')[int(parts[3])]}.{parts[4]}"
            else:
                kind = "convolution" if parts[2].startswith("conv") else "normalization"
                new = f"{block}.layer.{int(parts[2][-1]) - 1}.{kind}.{parts[3]}"
        out[new if parts[0] == "fc" else f"resnet.{new}"] = tensor
    return out


def _convnext_stages(state: State, block: str, downsample: str, layers: dict[str, str]) -> State:
    out = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[0] == "stages" and parts[2] == "downsample":
            out[f"{downsample.format(parts[1])}.{parts[3]}.{parts[4]}"] = tensor
        elif parts[0] == "stages":
            rest = ".".join(parts[4:])
            for old, new in layers.items():
                if rest == old or rest.startswith(f"{old}."):
                    out[f"{block.format(parts[1], parts[3])}.{new}{rest[len(old) :]}"] = tensor
    return out


def convnext(state: State) -> State:
    """The files of facebookresearch/ConvNeXt."""
    layers = {"gamma": "gamma", "conv_dw": "dwconv", "norm": "norm", "mlp.fc1": "pwconv1", "mlp.fc2": "pwconv2"}
    return {
        **both("downsample_layers.0.0", "stem.0", state),
        **both("downsample_layers.0.1", "stem.1", state),
        **_convnext_stages(state, "stages.{}.{}", "downsample_layers.{}", layers),
        **both("norm", "head.norm", state),
        "head.weight": torch.ones(2, 2),
    }


def hf_convnext(state: State) -> State:
    """ConvNextForImageClassification and, with grn, ConvNextV2ForImageClassification."""
    layers = {
        "gamma": "layer_scale_parameter",
        "conv_dw": "dwconv",
        "norm": "layernorm",
        "mlp.fc1": "pwconv1",
        "mlp.fc2": "pwconv2",
        "mlp.grn": "grn",
    }
    stages = _convnext_stages(
        state, "convnext.encoder.stages.{}.layers.{}", "convnext.encoder.stages.{}.downsampling_layer", layers
    )
    return {
        **both("convnext.embeddings.patch_embeddings", "stem.0", state),
        **both("convnext.embeddings.layernorm", "stem.1", state),
        **{name: tensor[None, None, None] if ".grn." in name else tensor for name, tensor in stages.items()},
        **both("convnext.layernorm", "head.norm", state),
        "classifier.weight": torch.ones(2, 2),
    }


def hf_dinov3_convnext(state: State) -> State:
    """DINOv3ConvNextModel."""
    layers = {
        "gamma": "gamma",
        "conv_dw": "depthwise_conv",
        "norm": "layer_norm",
        "mlp.fc1": "pointwise_conv1",
        "mlp.fc2": "pointwise_conv2",
    }
    return {
        **both("stages.0.downsample_layers.0", "stem.0", state),
        **both("stages.0.downsample_layers.1", "stem.1", state),
        **_convnext_stages(state, "stages.{}.layers.{}", "stages.{}.downsample_layers", layers),
        **both("layer_norm", "head.norm", state),
    }


def swin(state: State) -> State:
    """The files of microsoft/Swin-Transformer: a stage ends with the step down, in timm it begins with it."""
    out = {"head.weight": torch.ones(2, 2), "layers.0.blocks.0.attn.relative_position_index": torch.ones(4, 4).long()}
    for name, tensor in state.items():
        parts = name.split(".")
        if len(parts) > 2 and parts[2] == "downsample":
            parts[1] = str(int(parts[1]) - 1)
        out[".".join(parts)] = tensor
    return out


def hf_swin(state: State) -> State:
    """SwinForImageClassification."""
    out = {"classifier.weight": torch.ones(2, 2)}
    for name, tensor in swin(state).items():
        parts = name.split(".")
        if parts[0] == "head":
            continue
        if parts[0] == "patch_embed":
            layer = {"proj": "patch_embeddings.projection", "norm": "norm"}[parts[1]]
            out[f"swin.embeddings.{layer}.{parts[2]}"] = tensor
        elif parts[0] == "norm":
            out[f"swin.layernorm.{parts[1]}"] = tensor
        elif parts[2] == "downsample":
            out[f"swin.encoder.{name}"] = tensor
        else:
            block, rest = f"swin.encoder.{'.'.join(parts[:4])}", ".".join(parts[4:])
            if rest.startswith("attn.qkv."):
                width = len(tensor) // 3
                for number, part in enumerate(("query", "key", "value")):
                    piece = tensor[number * width : (number + 1) * width]
                    out[f"{block}.attention.self.{part}.{parts[-1]}"] = piece
            elif rest.startswith("attn.relative"):
                out[f"{block}.attention.self.{parts[-1]}"] = tensor
            else:
                layer = {
                    "attn.proj": "attention.output.dense",
                    "norm1": "layernorm_before",
                    "norm2": "layernorm_after",
                    "mlp.fc1": "intermediate.dense",
                    "mlp.fc2": "output.dense",
                }[".".join(parts[4:-1])]
                out[f"{block}.{layer}.{parts[-1]}"] = tensor
    return out
