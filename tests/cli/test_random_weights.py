"""A network with random weights that nothing trains is never used without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from processes import command, succeeded
from serving import Serving

pytestmark = pytest.mark.slow

WARNING = "random weights: this network has learned nothing"
NETWORK = ("--backbone", "test_resnet", "--weights", "random", "--resolution", "32")


def test_every_command_warns(unlabeled: Path, birds: Path, lcr: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = succeeded(command("train", "--data", unlabeled, "--out", run, "--method", "frozen", *NETWORK, "--quiet"))
    assert done.err.count(WARNING) == 1
    picture = next(unlabeled.glob("image*"))
    for words in (
        ("index", run, unlabeled, "--quiet"),
        ("search", run / "index", picture),
        ("embed", run, unlabeled, "--out", tmp_path / "f.csv", "--quiet"),
        ("evaluate", run, "--data", birds, "--no-linear", "--quiet"),
        ("evaluate", *NETWORK, "--data", birds, "--no-linear", "--quiet"),
    ):
        done = succeeded(command(*words))
        assert done.err.count(WARNING) == 1, words
        assert WARNING not in done.out
    for words in (
        ("serve", run / "index"),
        ("up", unlabeled, "--method", "frozen", *NETWORK, "--out", tmp_path / "up"),
    ):
        with Serving(*words, "--port", "0", *(["--no-open"] if words[0] == "up" else []), "--quiet") as running:
            assert running.url
            assert WARNING in running.stop()[2], words
    trained = succeeded(command("index", lcr, unlabeled, "--index", tmp_path / "trained", "--quiet"))
    assert WARNING not in trained.err, "trained from random weights: that is no mistake"
