"""The projection heads are those of each method's authors."""

import pytest
from objectives import small
from torch import nn

# A capital letter: the layer has a bias, the norm has weights.
ARCHITECTURES = {
    ("moco", "head"): "Linear relu Linear",
    ("byol", "head"): "linear Norm relu Linear",
    ("byol", "predictor"): "linear Norm relu Linear",
    ("simclr", "head"): "linear Norm relu linear Norm",  # as in the authors' code; their text has no norm at the end
    ("simsiam", "head"): "linear Norm relu linear Norm relu linear norm",
    ("simsiam", "predictor"): "linear Norm relu Linear",
    ("barlow-twins", "head"): "linear Norm relu linear Norm relu linear",
    ("vicreg", "head"): "linear Norm relu linear Norm relu linear",
    ("lewel", "head.shared"): "linear Norm relu linear",
    ("lewel", "head.aligned"): "linear Norm relu linear",
    ("lewel-byol", "predictor"): "linear Norm relu linear",
    ("lewel-byol", "aligned_predictor"): "linear Norm relu linear",
    ("supervised", "head"): "Linear",
}


def described(layer: nn.Module) -> str:
    if isinstance(layer, nn.Linear):
        return "linear" if layer.bias is None else "Linear"
    if isinstance(layer, nn.BatchNorm1d):
        return "Norm" if layer.affine else "norm"
    return type(layer).__name__.lower()


@pytest.mark.parametrize(("name", "network"), ARCHITECTURES)
def test_layers_of_the_authors(name: str, network: str) -> None:
    found = small(name).get_submodule(network)
    layers = [found] if isinstance(found, nn.Linear) else list(found.children())
    assert " ".join(map(described, layers)) == ARCHITECTURES[name, network]


def test_barlow_twins_standardizes_without_weights() -> None:
    assert not small("barlow-twins").norm.affine


def test_dino_has_three_layers_without_norm_before_its_prototypes() -> None:
    head = small("dino").head
    assert [type(layer).__name__ for layer in head.layers] == ["Linear", "GELU", "Linear", "GELU", "Linear"]
    assert [tuple(layer.weight.shape) for layer in head.layers[::2]] == [(10, 96), (10, 10), (4, 10)]
    assert head.prototypes.shape == (7, 4)
