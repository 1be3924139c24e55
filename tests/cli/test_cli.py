"""The command line as a user meets it: whole ways through it, and every wrong turn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from finesight.methods.base import METHODS
from processes import TINY, command, finesight, refused, succeeded, trained
from real_birds import WEIGHTS, cub_root, needs_weights

pytestmark = pytest.mark.slow

PLAIN = tuple(word for word in TINY if word not in ("--projections", "4"))  # for methods without a rationale


# --- whole ways -------------------------------------------------------------------------------------------------------


def test_from_nothing_to_scores_as_a_user_does(tmp_path: Path) -> None:
    """Training by the real ``python -m finesight``; what comes before and after in quicker processes."""
    data, run = tmp_path / "birds", tmp_path / "run"
    small = ("--species", "3", "--train-per-species", "6", "--test-per-species", "3", "--size", "40")
    assert "27 images, 3 classes" in succeeded(command("lookalikes", data, *small)).out
    assert "18 train + 9 test" in succeeded(command("inspect", data)).out
    done = succeeded(finesight("train", "--data", data, "--out", run, "--epochs", "1", *TINY))
    assert done.out == ""
    assert "lookalikes" in done.err
    assert "random weights; 16 images, 2 steps." in done.err
    assert str(run / "report.html") in done.err
    expected = {
        "config.yaml",
        "metrics.csv",
        "tensorboard",
        "checkpoints",
        "encoder",
        "skipped.csv",
        "report.html",
        "progress.json",
        "plan.json",
        "images.npz",
        "verdict.json",
    }
    assert {path.name for path in run.iterdir()} == expected | {".lock", ".verdict.lock"}
    succeeded(command("embed", run, data, "-o", tmp_path / "f.npz"))
    with np.load(tmp_path / "f.npz") as features:
        assert features["features"].shape == (27, 96)
    table = succeeded(command("evaluate", run, "--data", data, COLUMNS="200")).out
    for word in ("system", "run", "rank-1", "mAP", "linear 20 %", "pointing"):
        assert word in table
    assert json.loads((run / "evaluation.json").read_text())["retrieval"]["queries"] == 9


def test_progress_and_quiet(birds: Path, tmp_path: Path) -> None:
    loud = tuple(word for word in TINY if word != "--quiet")
    done = trained(tmp_path / "loud", "--data", birds, "--epochs", "1", *loud)
    assert "images/s" in done.err
    assert "left" in done.err
    assert "images/s" not in trained(tmp_path / "quiet", "--data", birds, "--epochs", "1", *TINY).err


def test_show_config_merges_file_flags_and_set(tmp_path: Path) -> None:
    """Flags win over the file, --set over both; the output is a file that gives the same again."""
    file = tmp_path / "settings.yaml"
    file.write_text(
        "data: somewhere\nmethod: lcr\nepochs: 7\nviews:\n  blur: 0.1\n  gray: 0.3\nrationale:\n  tau: 0.9\n"
    )
    options = ("--epochs", "8", "--resolution", "64", "--set", "views.gray=0", "--set", "rationale.tau=0.5")
    shown = succeeded(command("train", "--out", tmp_path / "x", "--config", file, *options, "--show-config")).out
    config = yaml.safe_load(shown)
    assert (config["epochs"], config["data"]) == (8, "somewhere")
    assert (config["views"]["blur"], config["views"]["gray"], config["views"]["resolution"]) == (0.1, 0, 64)
    assert config["rationale"]["tau"] == 0.5
    assert not (tmp_path / "x").exists()
    (tmp_path / "again.yaml").write_text(shown)
    again = succeeded(command("train", "--out", tmp_path / "x", "--config", tmp_path / "again.yaml", "--show-config"))
    assert yaml.safe_load(again.out) == config


def test_old_names_of_options_and_settings_work_with_one_line_each(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("data: x\nbatch: 7\noptim:\n  backbone_share: 0.5\nvalidation:\n  most: 50\n")
    old = ("--batch", "9", "--clip=2", "--accumulate", "3", "--set", "validation.every=2", "--set", "initial_share=0.1")
    old += ("--reading", "paper")
    done = succeeded(command("train", "--out", tmp_path, "--config", file, *old, "--show-config"))
    shown = yaml.safe_load(done.out)
    assert (shown["batch_size"], shown["initial_weight_ratio"]) == (9, 0.1)
    assert shown["rationale"]["variant"] == "paper"
    assert shown["validation"] == {"fraction": 0.1, "max_images": 50, "every_n_epochs": 2}
    optim = shown["optim"]
    found = [optim[name] for name in ("backbone_lr_ratio", "clip_grad_norm", "accumulate_grad_batches")]
    assert found == [0.5, 2, 3]
    words = (
        "--reading",
        "--batch",
        "--clip",
        "--accumulate",
        "validation.every",
        "initial_share",
        "optim.backbone_share",
    )
    for name in words:
        assert sum(f"{name} is called" in line for line in done.err.splitlines()) == 1, done.err


def test_variants_and_methods_are_what_they_say(tmp_path: Path) -> None:
    def shown(*options: str) -> dict:
        out = succeeded(command("train", "--data", "d", "--out", tmp_path / "x", *options, "--show-config")).out
        return yaml.safe_load(out)

    paper = shown("--variant", "paper", "--projections", "16", "--queue", "100")
    assert paper["rationale"]["divergence"] == "attention_target"
    assert paper["rationale"]["projections"] == 16
    assert paper["objective"]["projector"] == "3-layer-bn"
    assert paper["objective"]["queue"] == 100
    assert shown("--method", "moco-v2")["rationale"] is None
    assert shown("--no-rationale")["rationale"] is None
    byol = shown("--method", "byol", "--rationale", "--projections", "8", "--batch-size", "64")
    assert (byol["rationale"]["variant"], byol["rationale"]["projections"]) == ("finesight", 8)
    assert byol["optim"]["lr"] == pytest.approx(0.45 * 64 / 256)
    assert shown("--queue", "auto")["objective"]["queue"] == "auto"


def test_methods_are_listed_one_a_line_with_the_papers_row() -> None:
    lines = succeeded(command("methods")).out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    for line, (name, entry) in zip(lines, METHODS.items(), strict=True):
        assert entry.about in line, name
        assert ("[paper: " in line) == (entry.paper is not None), name
    told = json.loads(succeeded(command("methods", "--json")).out)
    assert told["byol-lcr"] == METHODS["byol-lcr"].describe()


def test_learning_from_labels_needs_some(unlabeled: Path, tmp_path: Path) -> None:
    done = command("train", "--data", unlabeled, "--out", tmp_path / "run", *PLAIN, "--method", "supervised")
    refused(done, "learns from labels", "has none")


def test_frozen_leaves_the_backbone_as_it_is_at_once(birds: Path, tmp_path: Path) -> None:
    run = tmp_path / "frozen"
    words = ("train", "--data", birds, "--out", run, *PLAIN, "--method", "frozen", "--batch-size", "500")
    succeeded(command(*words))
    assert (run / "report.html").exists()
    again = succeeded(command(*words))
    assert "nothing to do" in again.err + again.out
    plain = ("evaluate", "--data", birds, "--no-linear", "--json")
    scores = json.loads(succeeded(command(*plain, run)).out)
    assert scores["setting"]["pooling"] == "average"


def test_version_and_help() -> None:
    assert succeeded(command("--version")).out.startswith("finesight ")
    text = succeeded(command("--help")).out
    for name in ("train", "methods", "evaluate", "embed", "inspect", "lookalikes", "demo"):
        assert name in text
    assert command().code in (0, 2), "no arguments: the help"


# --- wrong turns: a message that says what to do, exit code 2, no traceback ------------------------------------------


def no_run(tmp_path: Path, data: Path, *options: str, words: tuple[str, ...]) -> None:
    refused(command("train", "--data", data, "--out", tmp_path / "run", *TINY, *options), *words)
    assert not list((tmp_path / "run").glob("encoder*"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "lrc"), ("no method 'lrc'", "Nearest: lcr")),
        (("--method", "moco"), ("no method 'moco'", "moco-v2")),
        (("--method", "zzz"), ("lcr, lcr+contrastive-crop, lcr-multitask",)),
        (("--method", "byol", "--projections", "3"), ("'byol' has no rationale", "--rationale")),
        (("--method", "byol", "--rationale", "--queue", "64"), ("objective.queue (no such setting)",)),
        (("--no-rationale", "--variant", "paper"), ("--no-rationale leaves nothing",)),
        (("--queue", "4"), ("queue of 4", "batch of", "--queue")),
        (("--output-stride", "32"), ("map of test_resnet is 1×1", "--resolution")),
        (
            ("--method", "dino", "--rationale", "--set", "views.local_resolution=99"),
            ("local crops of 99 px are larger",),
        ),
        (("--set", "views.blurr=1", "--set", "epoch=3"), ("views.blurr (no such setting)", "epoch (no such setting)")),
        (("--set", "views.blur"), ("key=value",)),
        (("--set", "views.blur=[1"), ("'[1'", "cannot be read")),
        (("--set", "views.blur=red"), ("views.blur", "number", "'red'")),
        (("--set", "rationale=3"), ("'rationale' must be a table",)),
        (("--epochs", "0"), ("epochs", "greater than or equal to 1")),
        (("--batch-size", "1"), ("batch", "greater than or equal to 2")),
        (("--lr", "-1"), ("optim.lr", "greater than 0")),
        (("--output-stride", "7"), ("backbone.output_stride",)),
        (("--precision", "8"), ("precision", "'bf16'")),
        (("--accelerator", "tpu"), ("accelerator", "'cpu'")),
        (("--config", "/nowhere/c.yaml"), ("/nowhere/c.yaml", "cannot be read")),
        (("--batch-size", "44"), ("43 readable images", "5 held out", "batch of 44", "lower --batch-size to 43")),
        (("--batch-size", "9", "--devices", "2"), ("--batch-size 9", "2 devices")),
        (("--backbone", "resnet_50"), ("unknown backbone", "resnet50")),
        (("--backbone", "pit_ti_224"), ("'pit_ti_224'", "class token alone")),
        (("--backbone", "test_vit"), ("cannot do output stride 8", "its patches are 16 px")),
        (("--weights", "/nowhere/w.pth"), ("/nowhere/w.pth", "no such file")),
    ],
    ids=lambda value: " ".join(value)[:40] if value and value[0].startswith("--") else "",
)
def test_wrong_settings(birds: Path, tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    no_run(tmp_path, birds, *options, words=words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(birds: Path, tmp_path: Path) -> None:
    no_run(tmp_path, birds, "--accelerator", "gpu", words=("--accelerator gpu",))


def test_wrong_data(tmp_path: Path) -> None:
    no_run(tmp_path, tmp_path / "nowhere", words=("nowhere does not exist", "--data"))
    (tmp_path / "empty").mkdir()
    no_run(tmp_path, tmp_path / "empty", words=("empty",))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("hello")
    no_run(tmp_path, tmp_path / "texts", words=("texts", ".txt"))
    refused(command("train", "--out", tmp_path / "run", *TINY), "data must be given")
    refused(command("inspect", tmp_path / "nowhere"), "does not exist")


def test_wrong_weights(birds: Path, tmp_path: Path) -> None:
    (tmp_path / "garbage.safetensors").write_bytes(b"nothing of the kind")
    no_run(tmp_path, birds, "--weights", str(tmp_path / "garbage.safetensors"), words=("garbage.safetensors",))
    save_file({"layer.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    no_run(tmp_path, birds, "--weights", str(tmp_path / "other.safetensors"), words=("other.safetensors", "0 of"))
    torch.save({"state_dict": torch.nn.Linear(2, 2)}, tmp_path / "model.pth")  # only unpickling could bring it back
    no_run(tmp_path, birds, "--weights", str(tmp_path / "model.pth"), words=("model.pth",))


def test_evaluate_wants_a_run_or_a_backbone(lcr: Path, birds: Path, tmp_path: Path) -> None:
    for wrong in (("--data", birds), (lcr, "--data", birds, "--backbone", "resnet50")):
        refused(command("evaluate", *wrong), "Give one of these: the folder of a run, --backbone, or --features")
    refused(command("evaluate", tmp_path, "--data", birds), "holds no encoder")
    refused(command("evaluate", lcr, "--data", tmp_path / "nowhere"), "does not exist")
    refused(command("evaluate", lcr, "--data", birds, "--pooling", "max"), "rationale-gem")
    plain = ("--backbone", "test_resnet", "--weights", "random", "--resolution", "32", "--data", birds)
    refused(command("evaluate", *plain, "--pooling", "rationale"), "needs a trained rationale")
    refused(command("embed", tmp_path, birds, "-o", tmp_path / "f.npz"), "holds no encoder")


def test_unknown_options_and_commands(tmp_path: Path) -> None:
    for wrong in (
        ("nonsense",),
        ("train",),
        ("train", "--bogus"),
        ("evaluate",),
        ("train", "--out", "x", "--epochs", "many"),
    ):
        done = command(*wrong)
        assert done.code == 2
        assert "Traceback" not in done.err


# --- the real birds ---------------------------------------------------------------------------------------------------


@needs_weights
def test_real_birds(tmp_path: Path) -> None:
    """The commands FineSight is shown with, on CUB-200-2011: one step of a ResNet-50."""
    run, cub = tmp_path / "RUN", cub_root()
    options = ("--backbone", "resnet50", "--weights", WEIGHTS, "--resolution", "112", "--output-stride", "16")
    size = ("--epochs", "1", "--batch-size", "64", "--limit-images", "72")
    done = succeeded(finesight("train", "--data", cub, *options, *size, "--out", run))
    assert "5,994 train + 5,794 test" in done.err
    assert "65 images, 1 step." in done.err
    assert (run / "encoder" / "encoder.safetensors").exists()
    scored = succeeded(finesight("evaluate", run, "--data", cub, "--json", "--limit-classes", "3"))
    scores = json.loads(scored.out)
    assert scores["setting"]["split"] == "official"
    assert scores["retrieval"]["queries"] > 50
    assert scores["retrieval"]["rank1"] > 50, "the ImageNet features are still there"
    assert scores["localization"]["images"] == scores["retrieval"]["queries"]
