"""What many tests share: a few drawn look-alikes, a run trained on them, a cache of their own."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: on tensors this small, threads are in each other's way

import hypothesis
import numpy as np
import pytest
from PIL import Image

from finesight.errors import FineSightError
from processes import TINY, Finished, command, succeeded
from refusals import pytest_sessionfinish, pytest_terminal_summary

# Ctrl-C is tested, too, where the tests run in the background of a shell, which lets its processes ignore it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["pytest_sessionfinish", "pytest_terminal_summary"]  # hooks

# No network but loopback, here and in every Python process that a test starts.
NO_NETWORK = str(Path(__file__).parent / "no_network")
if NO_NETWORK not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    runpy.run_path(os.path.join(NO_NETWORK, "sitecustomize.py"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [NO_NETWORK, os.environ.get("PYTHONPATH")]))

# Whether a change lands is not a matter of luck: neither of what is drawn nor of how busy the machine is.
hypothesis.settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests: a long one at the end would leave the other processes idle.

    Many tests start servers, clusters and browsers, which a busy machine may delay: one that fails is run a second
    time, and the summary names it (RERUN).
    """
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=1))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name != "test_learning.py", item.path not in slow))


SPECIES, TRAIN, TEST = 4, 12, 6  # drawn: 48 train and 24 test images


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or fills the user's cache."""
    before = os.environ.get("FINESIGHT_CACHE")
    os.environ["FINESIGHT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["FINESIGHT_CACHE"]
    else:
        os.environ["FINESIGHT_CACHE"] = before


@pytest.fixture(scope="session")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn look-alikes with labels, splits and masks. Not to be written to."""
    from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes

    root = tmp_path_factory.mktemp("data") / "birds"
    make_lookalikes(root, LookalikesConfig(species=SPECIES, train_per_species=TRAIN, test_per_species=TEST, size=40))
    return root


@pytest.fixture(scope="session")
def unlabeled(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 of the same images in one flat folder, and two files that are none."""
    root = tmp_path_factory.mktemp("data") / "flat"
    root.mkdir()
    for number, file in enumerate(sorted(birds.glob("train/*/*.png"))[::2]):
        shutil.copy(file, root / f"image-{number:02d}.png")
    (root / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing of use")
    (root / "notes.txt").write_text("not an image")
    return root


@pytest.fixture(scope="session")
def class_folders(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The train images as one folder per class, without splits or masks."""
    root = tmp_path_factory.mktemp("data") / "classes"
    shutil.copytree(birds / "train", root)
    return root


@pytest.fixture(scope="session")
def lcr(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of LCR: two epochs of five steps. Not to be written to (see ``lcr_copy``)."""
    out = tmp_path_factory.mktemp("runs") / "lcr"
    succeeded(command("train", "--data", birds, "--out", out, "--epochs", "2", *TINY))
    return out


@pytest.fixture
def lcr_copy(lcr: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lcr, tmp_path / "lcr-copy"))


@pytest.fixture(scope="session")
def scored(lcr: Path, birds: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A copy of the run, evaluated by the command line with --json; and what that printed."""
    run = Path(shutil.copytree(lcr, tmp_path_factory.mktemp("runs") / "scored"))
    return run, succeeded(command("evaluate", run, "--data", birds, "--json"))


@pytest.fixture
def picture(tmp_path: Path) -> Callable[..., Path]:
    """picture("a/b.png", size=(w, h), seed=0): a smooth random picture, a real file below tmp_path."""

    def write(name: str, size: tuple[int, int] = (40, 30), seed: int = 0) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)
        return path

    return write


@pytest.fixture(scope="session")
def half_precision() -> None:
    """Skip a test where the processor has no bfloat16."""
    from finesight.nn.half_precision import require_half_precision  # it loads torch, which many tests do without

    try:
        require_half_precision()
    except FineSightError as error:
        pytest.skip(str(error))
