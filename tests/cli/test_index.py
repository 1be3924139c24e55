"""``finesight index`` and ``finesight search`` as a user types them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from finesight.cli.index import index
from finesight.cli.search import search
from finesight.errors import FineSightError, Interrupted
from finesight.search.build import open_or_create
from indexes import small_encoder

app = typer.Typer()
app.command()(index)
app.command()(search)


def ran(*args: str | Path) -> str:
    done = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def failed(*args: str | Path) -> str:
    with pytest.raises(FineSightError) as caught:
        CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    return str(caught.value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return small_encoder(tmp_path / "run")


@pytest.fixture
def folder(unlabeled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(unlabeled, tmp_path / "photos"))


@pytest.mark.slow
def test_index_then_search(run: Path, folder: Path, tmp_path: Path) -> None:
    text = ran("index", run, folder, "--quiet")
    assert "24 images (24 added" in text
    assert "Search: exact." in text
    assert (run / "index/skipped.csv").read_text().startswith("path,reason\nbroken.png,")
    again: dict[str, Any] = json.loads(ran("index", run, folder, "--json", "--quiet"))
    assert (again["added"], again["kept"], again["items"], again["skipped"]) == (0, 24, 24, 2)
    assert (again["kind"], again["recall_at_10"]) == ("exact", 1.0)
    query = folder / "image-03.png"
    lines = ran("search", run, query, "-k", "3").splitlines()
    assert lines[0].endswith("(by rationale-gem):")
    assert lines[1].split() == ["1", "1.0000", "image-03.png"]
    assert len(lines) == 4
    found = json.loads(ran("search", run / "index", query, folder / "image-04.png", "-k", "2", "--json"))
    assert [len(one["hits"]) for one in found["results"]] == [2, 2]
    assert found["results"][0]["hits"][0]["path"] == "image-03.png"
    assert isinstance(found["results"][0]["hits"][0]["id"], str)
    part = json.loads(ran("search", run, query, "--box", "0,0,0.4,0.4", "--by", "average", "--json"))
    assert part["results"][0]["by"] == "average"
    assert part["results"][0]["view"]["x"] == 0
    assert "nothing" in ran("search", run, query, "--min-score", "1.5")
    kept = Path(shutil.move(folder, tmp_path / "moved"))  # the files are elsewhere now, their features are not
    assert "image-03.png" in ran("search", run, kept / "image-03.png", "-k", "1", "--diversity", "0.3")


@pytest.mark.slow
def test_what_goes_wrong_is_said(run: Path, folder: Path, tmp_path: Path) -> None:
    query = folder / "image-00.png"
    assert "no index yet" in failed("search", run, query)
    assert "nothing is there" in failed("search", tmp_path / "missing", query)
    assert "holds no encoder" in failed("index", tmp_path, folder)
    assert "does not exist" in failed("index", run, tmp_path / "missing")
    ran("index", run, folder, "--index", tmp_path / "index", "--quiet")
    assert "cannot be used" in failed("search", tmp_path / "index", folder / "notes.txt")
    assert "cannot be searched by" in failed("search", tmp_path / "index", query, "--by", "color")
    assert "four numbers" in failed("search", tmp_path / "index", query, "--box", "1,2")
    assert "--model is for" in failed("search", tmp_path / "index", query, "--engine", "torch", "--model", "a.onnx")
    other = small_encoder(tmp_path / "other", seed=3)
    assert "another encoder" in failed("index", other, folder, "--index", tmp_path / "index")
    assert "belongs to one folder" in failed("index", run, run / "..", "--index", tmp_path / "index")
    assert "not empty" in failed("index", run, folder, "--index", folder)


def test_an_empty_index(run: Path, tmp_path: Path) -> None:
    from finesight.features.embedder import TorchEmbedder

    open_or_create(run / "index", TorchEmbedder.load(run), run, tmp_path).close()
    assert "is empty" in failed("search", run, tmp_path / "a.jpg")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_a_signal(run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """What is done stays, the message says so, and the same command goes on."""
    assert threading.current_thread() is threading.main_thread()
    (folder / "broken.png").unlink()  # comes first, and may be all that was taken before the signal
    real, opened = Image.open, []

    def open_image(*args: Any, **options: Any) -> Image.Image:
        opened.append(args)
        if len(opened) == 6:
            os.kill(os.getpid(), number)
        return real(*args, **options)

    monkeypatch.setattr(Image, "open", open_image)
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="the same command continues") as caught:
        CliRunner().invoke(app, ["index", str(run), str(folder), "--workers", "1"], catch_exceptions=False)
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) == before
    monkeypatch.undo()
    done = json.loads(ran("index", run, folder, "--json", "--quiet"))
    assert done["items"] == 24
    assert done["kept"] >= 1
    assert done["added"] == 24 - done["kept"]
