"""A vision transformer through every command, from a training to an exported file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from processes import command, refused, succeeded

pytestmark = pytest.mark.slow

TINY_VIT = (
    *("--backbone", "test_vit", "--weights", "random", "--batch-size", "8", "--projections", "4", "--epochs", "1"),
    *("--log-every", "1", "--accelerator", "cpu", "--quiet"),
)


@pytest.fixture(scope="module")
def run(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained at 32 px, used at 48 px: 2 × 2 and 3 × 3 patches."""
    out = tmp_path_factory.mktemp("runs") / "vit"
    sizes = ("--resolution", "32", "--test-resolution", "48")
    done = succeeded(command("train", "--data", birds, "--out", out, *sizes, *TINY_VIT, "--checkpoint-activations"))
    assert "test_vit takes sides that are multiples of 16 px: it is trained at 32 px and used at 48 px" in " ".join(
        done.err.split()
    )
    return out


def test_evaluate_embed_and_search(run: Path, birds: Path, tmp_path: Path) -> None:
    scores = json.loads(succeeded(command("evaluate", run, "--data", birds, "--json", "--quiet")).out)
    assert scores["retrieval"]["queries"] == 24
    succeeded(command("embed", run, birds, "-o", tmp_path / "f.npz", "--quiet"))
    with np.load(tmp_path / "f.npz") as file:
        assert file["features"].shape == (72, 64)
        assert np.isfinite(file["features"]).all()
    succeeded(command("index", run, birds, "--index", tmp_path / "index", "--quiet"))
    picture = next(iter(sorted(birds.glob("test/*/*.png"))))
    found = json.loads(succeeded(command("search", tmp_path / "index", picture, "-k", "3", "--json")).out)
    assert picture.name in json.dumps(found)


def test_poolings_of_the_class_token(run: Path, birds: Path) -> None:
    options = ("--data", birds, "--json", "--quiet")
    scores = json.loads(succeeded(command("evaluate", run, *options, "--pooling", "class-token-and-average")).out)
    assert scores["setting"]["pooling"] == "class-token-and-average"
    both = ("--pooling-a", "attention", "--pooling-b", "class-token")
    found = json.loads(succeeded(command("compare", run, run, *options, *both)).out)
    assert (found["a"]["pooling"], found["b"]["pooling"]) == ("attention", "class-token")


def test_networks_without_a_class_token_refuse(birds: Path) -> None:
    network = ("--backbone", "test_resnet", "--weights", "random", "--resolution", "32")
    message = refused(command("evaluate", "--data", birds, *network, "--pooling", "attention"))
    assert "needs a class token, and 'test_resnet' has none" in " ".join(message.split())


def test_explain(run: Path, birds: Path, tmp_path: Path) -> None:
    picture = next(iter(sorted(birds.glob("test/*/*.png"))))
    succeeded(command("explain", run, picture, "-o", tmp_path / "why", "--quiet"))
    assert (tmp_path / "why" / "index.html").exists()
    kinds = {file.stem.rpartition("-")[2] for file in (tmp_path / "why").rglob("*.png")}
    assert kinds >= {"mask", "energy", "attention", "gradcam"}


def test_export(run: Path, tmp_path: Path) -> None:
    """The file is checked against PyTorch at several sizes before it is written."""
    done = succeeded(command("export", run, tmp_path / "model.onnx", "--json", "--quiet"))
    differences = json.loads(done.out)["differences"]
    assert max(each["relative"] for each in differences.values()) < 1e-4


@pytest.mark.parametrize(
    ("backbone", "more", "trained", "used"),
    [
        ("vit_small_patch14_dinov2", (), 126, 224),
        ("test_vit", (), 128, 224),
        ("test_vit_relpos", (), 160, 160),
        ("vit_small_patch14_dinov2", ("--resolution", "98"), 98, 224),
        ("resnet18", (), 128, 224),
    ],
)
def test_the_sizes_that_the_gentle_preset_chooses(
    birds: Path, tmp_path: Path, backbone: str, more: tuple[str, ...], trained: int, used: int
) -> None:
    options = ("--preset", "gentle", "--backbone", backbone, "--epochs", "1", "--show-config", *more)
    shown = succeeded(command("train", "--data", birds, "--out", tmp_path / "x", *options)).out
    config = yaml.safe_load(shown)
    assert (config["views"]["resolution"], config["test_resolution"]) == (trained, used)
    wanted = "takes sides that are multiples of 14 px: the nearest to 128 px"
    assert (wanted in shown) == (trained == 126)


def test_local_crops_have_a_size_that_is_taken(birds: Path, tmp_path: Path) -> None:
    settings = ("--method", "dino", "--resolution", "96", "--set", "views.local_crops=2", "--show-config")
    tiny = tuple(word for word in TINY_VIT if word not in ("--projections", "4"))
    shown = succeeded(command("train", "--data", birds, "--out", tmp_path / "x", *settings, *tiny)).out
    assert yaml.safe_load(shown)["views"]["local_resolution"] == 48  # not 41


def test_a_given_size_that_is_not_taken(birds: Path, tmp_path: Path) -> None:
    out = ("--data", birds, "--out", tmp_path / "x")
    message = refused(command("train", *out, "--resolution", "32", "--test-resolution", "40", *TINY_VIT))
    assert "--test-resolution 40: 'test_vit' takes sides that are multiples of 16 px" in message
    frozen = ("--backbone", "test_vit", "--weights", "random", "--resolution", "50")
    refused(command("evaluate", "--data", birds, *frozen), "multiples of 16 px", "take 48 or 64 px")


def test_activations_that_cannot_be_checkpointed(birds: Path, tmp_path: Path) -> None:
    out = ("--data", birds, "--out", tmp_path / "x", "--resolution", "32", "--checkpoint-activations", *TINY_VIT)
    refused(command("train", *out, "--compile"), "leave out --checkpoint-activations or --compile")
