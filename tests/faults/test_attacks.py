"""The short form of ``python -m chaos.attacks``, and Ctrl-C while such a file is being decoded."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import ImageFile

from bombs import png_bomb, scan_bomb
from chaos.attacks import FILES, PICTURES, SIDE, make_folder, replay, upload
from indexes import small_encoder
from processes import TIMEOUT, TINY, Command, Finished, children_of
from serving import Gallery, Serving, form, make_gallery

SCANS = {name: FILES[name] for name in ("scans-244KB.jpg", "scans-1.2MB.jpg")}  # 10 seconds and minutes of work


@pytest.mark.parametrize("name", ["embed", "index", "train"])
def test_what_they_cost_a_command(tmp_path: Path, name: str) -> None:
    cost = replay(name, tmp_path, SCANS)
    assert cost.code == 0, cost
    assert cost.processor_seconds < 15, cost
    [skipped] = tmp_path.rglob("*skipped.csv")
    assert skipped.read_text().count("too much work to decode") == len(SCANS)


@pytest.mark.slow
def test_a_large_png(tmp_path: Path) -> None:
    """8,000 × 8,000 RGBA: 256 MB as decoded. Before, it took more than four times that, and the command kept it."""
    cost = replay("embed", tmp_path, {"large.png": lambda: png_bomb(8000)})
    assert cost.code == 0, cost
    assert cost.megabytes < 900, cost
    with np.load(tmp_path / "features.npz") as file:
        assert len(file["features"]) == PICTURES + 1, "it is a picture like any other"


def test_what_they_cost_a_server(tmp_path: Path) -> None:
    costs = list(upload(tmp_path, {**SCANS, "8000.png": lambda: png_bomb(8000)}))
    assert [cost.code for cost in costs] == [422, 422, 413, 200], costs
    assert sum(cost.processor_seconds for cost in costs) < 10, costs
    assert max(cost.megabytes for cost in costs) < 1000, costs


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def decoding(running: Command) -> list[int]:
    """The processes that decode for a command."""
    assert running.process.pid is not None
    files = {child: Path(f"/proc/{child}/cmdline") for child in children_of(running.process.pid)}
    return [child for child, file in files.items() if file.exists() and b"decode_process" in file.read_bytes()]


def hang(note: Path, target: Callable[..., None], *args: Any) -> None:
    """Let each JPEG that this process decodes itself take for ever, where no signal ends it, as many scans do.

    Nothing else is like that here: commands decode it elsewhere. The threads that earlier versions decoded it in went
    on after Ctrl-C, and the command with them.
    """
    load = ImageFile.ImageFile.load

    def load_or_hang(image: ImageFile.ImageFile) -> Any:
        if image.format == "JPEG":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            note.touch()
            time.sleep(10 * TIMEOUT)
        return load(image)

    ImageFile.ImageFile.load = load_or_hang  # type: ignore[method-assign]
    target(*args)


class Hanging(Command):
    """A command that never ends decoding a JPEG, wherever it decodes it."""

    note: Path

    def _begin(self, target: Callable[..., None], *args: Any) -> None:
        self.note = Path(tempfile.mkdtemp(prefix="finesight-test-")) / "decoding"
        super()._begin(hang, self.note, target, *args)

    def stop_while_decoding(self, *, terminal: bool = False) -> Finished:
        """Press Ctrl-C while a JPEG is decoded: in a process of its own, which is halted, or in that of the command.

        In a terminal the signal reaches that process, too, when it goes on.
        """
        self.until(lambda: bool(decoding(self)) or self.note.exists())
        children = decoding(self)
        try:
            for child in children:
                os.kill(child, signal.SIGSTOP)
                if terminal:
                    os.kill(child, signal.SIGINT)
            self.send(signal.SIGINT)
            done = self.wait()  # fails if it lives on
            assert not [child for child in children if Path(f"/proc/{child}").exists()], "a child is left"
        finally:
            shutil.rmtree(self.note.parent)
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        return done


class HangingServer(Hanging, Serving):
    """A server that never ends decoding a JPEG."""


@pytest.mark.parametrize(("name", "terminal"), [("embed", False), ("embed", True), ("index", False), ("train", False)])
def test_ctrl_c_in_the_middle_of_a_decode(tmp_path: Path, name: str, terminal: bool) -> None:
    run, images = small_encoder(tmp_path / "run"), make_folder(tmp_path / "images", {})
    (images / "a.jpg").write_bytes(scan_bomb(SIDE, 4))
    commands: dict[str, tuple[str | Path, ...]] = {
        "embed": ("embed", run, images, "-o", tmp_path / "f.npz", "--quiet"),
        "index": ("index", run, images, "--index", tmp_path / "index", "--quiet"),
        "train": ("train", "--data", images, "--out", tmp_path / "out", "--epochs", "1", *TINY),
    }
    running = Hanging(*commands[name], FINESIGHT_CACHE=str(tmp_path / "cache"))
    done = running.stop_while_decoding(terminal=terminal)
    assert done.code == 130, done
    assert "Traceback" not in done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("finesight: Stopped"), done.err
    assert done.err.count("Stopped") == 1, done.err


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    return make_gallery(tmp_path_factory.mktemp("attacks"), images=4)


def test_ctrl_c_while_a_server_decodes(gallery: Gallery) -> None:
    server = HangingServer("serve", gallery.index, "--port", "0")
    answers: list[int] = []

    def send() -> None:
        with suppress(httpx.TransportError):
            answers.append(
                httpx.post(f"{server.url}api/search", files=form(scan_bomb(SIDE, 3)), timeout=TIMEOUT).status_code
            )

    sender = threading.Thread(target=send)
    sender.start()
    done = server.stop_while_decoding()
    sender.join(TIMEOUT)
    assert done.code == 0, done
    assert done.err.split() == ["Ctrl-C", "stops", "it.", "Stopped."], done.err
    assert not answers or answers[0] >= 400
