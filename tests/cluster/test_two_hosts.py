"""Training on two machines that share a network and nothing else that matters: as one process, and when one dies."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from finesight.data.geometry import as_scale, cache_side
from finesight.data.store import read_entries
from hosts import PORT, Host, Running, in_hosts, launch, two_hosts, wait_for, why_not
from method_steps import KEYS, METHODS, STATISTICS, same, steps_of
from processes import TINY, Finished, TooLate, command, in_time, rows, succeeded, trained
from ranks import assert_same_training

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

EVERY_STEP = ("--checkpoint-minutes", "0")
ONE_NORM = ("--set", "backbone.frozen_norm=true")  # else each host normalizes by its own half of the batch


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    if reason := why_not():
        pytest.skip(reason)
    with two_hosts() as made:
        yield made


def train_words(out: Path, birds: Path, *more: str) -> list[str]:
    return ["train", "--out", str(out), "--data", str(birds), *ONE_NORM, *TINY, *more]


def finish(running: list[Running]) -> list[Finished]:
    return [succeeded(one) for one in [one.wait() for one in running]]


def train_on(hosts: list[Host], launcher: str, words: Callable[[int], list[str]], port: int = PORT) -> None:
    """Train to the end, without the report: drawing it takes longer than the training."""
    out = Path(words(0)[2])
    running = launch(hosts, launcher, words, port)
    wait_for(lambda: (out / "config.yaml").exists(), running)
    (out / "report.html").touch()
    finish(running)


def decoded(folder: Path) -> set[bytes]:
    """The images of the training that a cache holds; none may be there twice."""
    keys = read_entries(folder / f"v1-side{as_scale(cache_side(32))}").keys.tolist()
    assert len(keys) == len(set(keys))
    return set(keys)


# --- as one process ---------------------------------------------------------------------------------------------------


def test_every_method(hosts: list[Host], tmp_path: Path) -> None:
    """Losses, metrics and weights after two steps, over the network. MoCo's norms differ on purpose, and so do the
    statistics of LEWEL's keys; where a method does not join its norms, the backbone's keep their statistics."""
    found = in_hosts(hosts, "method_steps:every_method", tmp_path)
    for method in METHODS:
        for step, alone in enumerate(steps_of(method, slice(None))):
            for host in found:
                here = host[method][step]
                assert here["means"].keys() == alone["means"].keys()
                for name, value in alone["means"].items():
                    same(here["means"][name], value, f"{method} {name}")
                for name, value in alone["state"].items():
                    if not name.startswith(KEYS) or name.rpartition(".")[2] not in STATISTICS:
                        same(here["state"][name], value, f"{method} {name}")


def test_one_cache_folder_for_both(hosts: list[Host], birds: Path, tmp_path: Path) -> None:
    """Started by torchrun. The second host sees the cache, but not the run: the first one tells it what it must know.
    Five images are held out: the hosts score three and two of them."""
    one, two, cache = tmp_path / "one", tmp_path / "two", tmp_path / "cache"
    options = ("--epochs", "3", "--cache-dir", str(cache))
    trained(one, *train_words(one, birds, *options)[3:])
    before = decoded(cache)
    places = [two, tmp_path / "elsewhere"]
    shared = tmp_path / "shared"
    options = ("--epochs", "3", "--cache-dir", str(shared))
    train_on(hosts, "torchrun", lambda host: train_words(places[host], birds, *options))
    assert_same_training(one, two)
    assert decoded(shared) == before
    assert not places[1].exists()
    assert any(row["val_rank1"] for row in rows(two))


def test_each_host_decodes_its_own_part(hosts: list[Host], birds: Path, tmp_path: Path) -> None:
    """Started as by srun. One process that is given as many parts trains on the same batches. With the preset paper
    nothing is chosen by a look at up to 256 images, which are all of so small a folder. Both hosts decode some of the
    five images that are held out: who scores them during training, and the first one all at the end."""
    one, two = tmp_path / "one", tmp_path / "two"
    parts = ("--epochs", "3", "--cache-shards", "2", "--preset", "paper")
    trained(one, *train_words(one, birds, *parts, "--cache-dir", str(tmp_path / "all"))[3:])
    caches = [tmp_path / "first", tmp_path / "second"]
    train_on(hosts, "slurm", lambda host: train_words(two, birds, *parts, "--cache-dir", str(caches[host])))
    assert_same_training(one, two)
    first, second = (decoded(cache) for cache in caches)
    whole = decoded(tmp_path / "all")
    assert first | second == whole
    assert len(first & second) <= 5
    assert min(len(first), len(second)) > 10


# --- when a host dies -------------------------------------------------------------------------------------------------


def test_a_host_that_dies_stops_the_other(hosts: list[Host], birds: Path, tmp_path: Path) -> None:
    """Once the first loses its power (its processes end without a word), once the second its cable. The same command
    goes on, and its losses and weights are those of a run that nothing happened to."""
    undisturbed = tmp_path / "undisturbed"
    train_on(hosts, "slurm", lambda host: train_words(undisturbed, birds, "--epochs", "20"), port=29511)

    def die(place: Path) -> None:
        out = place / "run"
        words = train_words(out, birds, "--epochs", "20", *EVERY_STEP)
        for victim, launcher in enumerate(("kubernetes", "torchrun")):
            before = len(rows(out))
            running = launch(hosts, launcher, lambda host: words, port=29500 + victim)
            wait_for(lambda before=before: len(rows(out)) >= before + 5, running)
            if launcher == "kubernetes":
                running[victim].kill()
            else:
                hosts[victim].cut()
            died = time.monotonic()
            survivor = running[1 - victim].wait()
            took = time.monotonic() - died
            hosts[victim].cut(off=False)
            running[victim].kill()
            running[victim].wait()
            if len(rows(out)) >= 100:
                raise TooLate
            assert survivor.code != 0
            assert took < 60, survivor.err
            told = [line for line in survivor.err.splitlines() if line.startswith("finesight: ")]
            assert len(told) == 1, survivor.err
            assert "it continues from the last checkpoint" in told[0]
            if launcher == "kubernetes":
                assert survivor.code == 2
                assert "Traceback" not in survivor.err
        train_on(hosts, "slurm", lambda host: words, port=29510)
        assert [int(row["step"]) for row in rows(out)] == list(range(100))
        assert_same_training(undisturbed, out)

    in_time(die, tmp_path)


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_evaluation_is_shared(hosts: list[Host], lcr: Path, birds: Path, tmp_path: Path) -> None:
    """23 test images: the first host embeds 12 of them, the second 11. The scores are those of one process."""
    odd = tmp_path / "odd"
    shutil.copytree(birds, odd)
    next((odd / "test").glob("*/*.png")).unlink()
    runs = [Path(shutil.copytree(lcr, tmp_path / f"run-{number}")) for number in range(2)]

    def words(run: Path) -> list[str]:
        return ["evaluate", str(run), "--data", str(odd), "--json", "--quiet"]

    alone = json.loads(succeeded(command(*words(runs[0]))).out)
    first, second = finish(launch(hosts, "kubernetes", lambda host: words(runs[1]), port=29520))
    assert second.out == ""
    together = json.loads(first.out)
    assert together["setting"]["test_images"] == 23
    assert together["retrieval"] == pytest.approx(alone["retrieval"], rel=1e-4)
    assert together["knn"].keys() == alone["knn"].keys()
    for k, scores in alone["knn"].items():  # which need the train images too
        assert together["knn"][k] == pytest.approx(scores, rel=1e-4)
