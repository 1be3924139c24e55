"""φ of vision transformers and of models with the channels last."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

from finesight.errors import FineSightError
from finesight.nn.backbone import Backbone, BackboneConfig
from finesight.nn.feature_map import Sides, find_map
from finesight.nn.parts import find_parts
from reference.tokens import token_map


def backbone(name: str = "test_vit", **options: object) -> Backbone:
    torch.manual_seed(0)
    return Backbone(BackboneConfig.model_validate({"name": name, "weights": "random", **options}))


def images(height: int = 64, width: int = 64, n: int = 2) -> Tensor:
    return torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(1))


PREFIXES = [  # name, tokens before those of the patches, side of a patch
    ("test_vit", 1, 16),  # class
    ("test_vit2", 1, 16),  # register
    ("test_vit3", 1, 16),  # register; a pooling by attention, which φ does not need
    ("deit_tiny_distilled_patch16_224", 2, 16),  # class and distillation
    pytest.param("vit_small_patch14_reg4_dinov2", 5, 14, marks=pytest.mark.slow),  # class and four registers
    pytest.param("vit_small_patch16_dinov3", 5, 16, marks=pytest.mark.slow),  # with rotary position embeddings
]


@pytest.mark.parametrize(("name", "prefix", "patch"), PREFIXES)
def test_phi_is_the_tokens_of_the_patches_in_their_places(name: str, prefix: int, patch: int) -> None:
    net = backbone(name).eval()
    twin = timm.create_model(name, num_classes=0, dynamic_img_size=True).eval()
    twin.load_state_dict(net.model.state_dict(), strict=False)
    views = images(4 * patch, 6 * patch)
    with torch.no_grad():
        tokens, phi = twin.forward_features(views), net(views)
    assert tokens.shape[1] == prefix + 4 * 6
    # not bit for bit: without AVX-512, what a twin computes is rounded otherwise
    np.testing.assert_allclose(phi.numpy(), token_map(tokens.numpy(), prefix, 4, 6), rtol=1e-4, atol=1e-5)
    assert (net.channels, net.stride) == (tokens.shape[2], patch)


def test_position_embeddings_of_another_size_are_interpolated_as_timm_does() -> None:
    """Against a network that was built for that size, with the position embeddings resampled."""
    net = backbone("test_vit").eval()
    state = net.model.state_dict()
    fixed = timm.create_model("test_vit", num_classes=0, img_size=96, dynamic_img_size=False).eval()
    assert fixed.pos_embed.shape != state["pos_embed"].shape
    state["pos_embed"] = resample_abs_pos_embed(state["pos_embed"], new_size=[6, 6], num_prefix_tokens=1)
    fixed.load_state_dict(state, strict=False)
    with torch.no_grad():
        expected = token_map(fixed.forward_features(images(96, 96)).numpy(), 1, 6, 6)
        np.testing.assert_allclose(net(images(96, 96)).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["test_mambaout", pytest.param("swin_tiny_patch4_window7_224", marks=pytest.mark.slow)]
)
def test_channels_that_come_last_are_moved(name: str) -> None:
    net = backbone(name).eval()
    with torch.no_grad():
        given, phi = net.model.forward_features(images(64, 96)), net(images(64, 96))
    assert given.shape == (2, 2, 3, net.channels)
    for i in range(2):
        for j in range(3):
            assert torch.equal(phi[:, :, i, j], given[:, i, j])


LOCAL = ["test_vit", "test_vit2", "coat_lite_tiny", "hiera_tiny_224", "deit_tiny_distilled_patch16_224"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOCAL)
def test_a_change_of_the_image_shows_in_its_own_cell(name: str) -> None:
    """A model may order its tokens as it likes inside: here its residuals carry each patch to where it belongs."""
    net = backbone(name).eval()
    side = 224 if net.map.sides.fixed else net.map.sides.nearest(128)
    plain = images(side, side, n=1)
    cells, stride = side // net.stride, net.stride
    for i, j in ((0, 0), (1, cells - 1), (cells - 1, 1), (2, 1)):
        changed = plain.clone()
        changed[:, :, i * stride : (i + 1) * stride, j * stride : (j + 1) * stride] *= -1
        with torch.no_grad():
            moved = (net(changed) - net(plain)).square().sum(1)[0]  # (H, W)
        assert divmod(int(moved.argmax()), cells) == (i, j)


def test_every_weight_has_a_gradient() -> None:
    """A parameter without gradient makes DDP fail."""
    for name in ("test_vit", "test_vit2", "test_mambaout"):
        net = backbone(name)
        net(images()).square().sum().backward()
        assert [n for n, p in net.named_parameters() if p.grad is None] == []


def test_frozen_blocks() -> None:
    assert len(find_parts("test_vit")) == 7  # patch and position embedding, six blocks
    net = backbone("test_vit", freeze=2, frozen_norm=True)
    net(images()).square().sum().backward()
    frozen = {n.removeprefix("model.") for n, p in net.named_parameters() if p.grad is None}
    assert {n.split(".")[0] for n in frozen} == {"cls_token", "pos_embed", "patch_embed", "blocks"}
    assert {n.split(".")[1] for n in frozen if n.startswith("blocks")} == {"0"}
    assert {n for n in frozen if n.startswith("blocks.0")} == {
        f"blocks.0.{n}" for n, _ in net.model.blocks[0].named_parameters()
    }
    with pytest.raises(FineSightError, match="'test_vit' has a stem and 6 blocks"):
        backbone("test_vit", freeze=8)


def test_nothing_is_folded_in_a_transformer() -> None:
    net = backbone("test_vit").eval()
    with torch.no_grad():
        assert torch.equal(net(images(), folded=True), net(images()))


def test_output_stride() -> None:
    assert backbone("test_vit", output_stride=16).stride == 16  # what it has
    with pytest.raises(FineSightError, match="'test_vit' cannot do output stride 8: its patches are 16 px"):
        backbone("test_vit", output_stride=8)


def test_sizes_that_are_not_taken() -> None:
    with pytest.raises(FineSightError, match="takes sides that are multiples of 16 px, not 100: take 96 or 112 px"):
        backbone("test_vit")(images(96, 100))
    dinov2 = find_map("vit_small_patch14_dinov2").map
    assert (dinov2.stride, dinov2.sides, dinov2.prefix) == (14, Sides(14), 1)
    assert [dinov2.sides.nearest(side) for side in (1, 128, 224, 512)] == [14, 126, 224, 518]
    assert backbone("test_vit_relpos").map.sides == Sides(160, fixed=True)
    with pytest.raises(FineSightError, match="'test_vit_relpos' takes images of 160 px only, not 128: take 160 px"):
        backbone("test_vit_relpos")(images(128, 128))
    assert find_map("test_resnet").map.sides == Sides()


def test_a_model_without_a_map_is_refused_with_the_reason() -> None:
    with pytest.raises(FineSightError, match="'pit_ti_224' gives the class token alone"):
        find_map("pit_ti_224")
