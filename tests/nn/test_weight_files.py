"""Weights in folders and in shards."""

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from finesight.errors import FineSightError
from finesight.nn.weights import load_weights
from reference.weight_layouts import hf_vit

State = dict[str, Tensor]


def make() -> nn.Module:
    return timm.create_model("test_vit", pretrained=False, num_classes=0)


def donor_state() -> State:
    generator = torch.Generator().manual_seed(7)
    return {name: torch.rand(tensor.shape, generator=generator) for name, tensor in make().state_dict().items()}


def assert_holds(model: nn.Module, state: State) -> None:
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def shard(state: State, folder: Path, suffix: str = ".safetensors") -> Path:
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    names = list(state)
    files = {f"{stem}-{n + 1:05d}-of-00003{suffix}": names[n::3] for n in range(3)}
    for file, part in files.items():
        content = {name: state[name].clone().contiguous() for name in part}
        save_file(content, folder / file) if suffix == ".safetensors" else torch.save(content, folder / file)
    index = folder / f"{stem}{suffix}.index.json"
    places = {name: file for file, part in files.items() for name in part}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}), encoding="utf-8")
    return index


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_shards_by_their_index_or_their_folder(tmp_path: Path, suffix: str) -> None:
    donor = donor_state()
    index = shard(hf_vit(donor), tmp_path, suffix)
    for path in (index, tmp_path):
        model = make()
        assert load_weights(model, path).startswith(f"{len(donor)} of {len(donor)} tensors matched (Hugging Face ViT")
        assert_holds(model, donor)
    next(path for path in tmp_path.iterdir() if "00002" in path.name).unlink()
    with pytest.raises(FineSightError, match="00002-of-00003"):
        load_weights(make(), index)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not an index of weight files"),
        ("{", "not an index of weight files"),
        ('{"weight_map": {"a": "../secret.bin"}}', "points to '../secret.bin'"),
        ('{"weight_map": {"a": 3}}', "points to '3'"),
    ],
)
def test_an_index_that_is_none(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content, encoding="utf-8")
    with pytest.raises(FineSightError, match=message):
        load_weights(nn.Identity(), tmp_path)


def test_a_folder_with_one_file_or_several(tmp_path: Path) -> None:
    donor = donor_state()
    save_file(donor, tmp_path / "a.safetensors")
    model = make()
    load_weights(model, tmp_path)
    assert_holds(model, donor)
    save_file(donor, tmp_path / "b.safetensors")
    with pytest.raises(FineSightError, match=r"several weight files \(a.safetensors, b.safetensors\)"):
        load_weights(model, tmp_path)
