"""``finesight doctor``: what is installed, what the machine gives, what is slow and why."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from finesight.io.machine import Cores
from finesight.report.doctor import threads_fact
from finesight.report.speed_probe import measure_decoding, measure_embedding
from finesight.version import __version__
from indexes import small_encoder
from processes import command, environment, refused, succeeded


def test_the_table_for_people(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "pixels.bin").write_bytes(b"0" * 3_000_000)
    key = '{"name":"resnet18","weights":""} 16 of 224 px, here x86_64 1 threads, torch 2'
    (cache / "engines.json").write_text(json.dumps({key: 1.25}))
    out = succeeded(command("doctor", FINESIGHT_CACHE=str(cache))).out
    assert __version__ in out
    for words in ("torchvision", "onnxruntime", "faiss-cpu", "opencv-python-headless"):
        assert words in out
    for words in ("milvus", "cores", "threads", "open files", "container"):
        assert words in out
    assert f"{cache}: 3.0 MB" in out
    assert "resnet18, 16 of 224 px" in out
    assert "onnxruntime is 1.25 times as fast as torch" in out


def test_the_same_for_scripts_and_why_it_is_slow(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "finesight", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment(FINESIGHT_CACHE=str(tmp_path / "not-yet"), OMP_WAIT_POLICY="ACTIVE"),
        check=True,
    )
    said = json.loads(done.stdout)
    assert said["broken"] == []
    assert said["software"]["finesight"].startswith(__version__)
    assert said["processor"]["threads"] == 1
    cores = said["processor"]["cores"]
    assert cores["machine"] == os.cpu_count()
    slow = " ".join(said["slow"])
    if cores["allowed"] > 1 and cores["limit"] is None:
        assert f"torch uses 1 of {cores['allowed']} cores because OMP_NUM_THREADS=1" in slow
    assert "OMP_WAIT_POLICY=ACTIVE" in slow
    assert said["disk"]["cache"]["folder"] == str(tmp_path / "not-yet")
    assert said["disk"]["cache"]["bytes"] == 0
    assert not (tmp_path / "not-yet").exists()  # it looks, and changes nothing


def test_a_setting_that_is_wrong_is_broken(tmp_path: Path) -> None:
    done = command("doctor", FINESIGHT_CACHE=str(tmp_path), FINESIGHT_CACHE_GB="many")
    assert done.code == 1
    assert "FINESIGHT_CACHE_GB='many' must be a number" in done.out
    assert "Traceback" not in done.err


def planted(folder: Path, name: str, version: str) -> dict[str, object]:
    """What doctor says in a new process that finds the distribution in ``folder`` before those installed."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    done = subprocess.run(
        [sys.executable, "-m", "finesight", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])),
        check=False,
    )
    said: dict[str, object] = json.loads(done.stdout)
    assert done.returncode == bool(said["broken"])
    return said


def test_torchvision_that_was_built_for_another_torch(tmp_path: Path) -> None:
    """As it fails with a real one: its operators are not there, and timm and Lightning import it."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not')")
    said = planted(tmp_path, "torchvision", "0.1")["broken"]
    assert isinstance(said, list)
    assert re.match(r"torchvision 0\.1 does not fit torch \S+ \(operator torchvision::nms does not\)", said[0])
    assert "from the same index" in said[0]
    assert re.fullmatch(r"timm \S+ needs torchvision, which cannot be imported\.", said[1])


def test_a_second_opencv_is_named(tmp_path: Path) -> None:
    said = planted(tmp_path, "opencv-python", "4.9")["software"]
    assert isinstance(said, dict)
    assert "opencv-python is installed too" in said["opencv-python-headless"]


def test_a_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = json.loads(succeeded(command("doctor", "--json", FINESIGHT_CACHE=str(tmp_path / "file"))).out)
    assert any("cannot be written" in words for words in said["slow"])


@pytest.mark.parametrize(
    ("threads", "limit", "state", "words"),
    [
        (4, None, "ok", ""),
        (1, None, "slow", "torch uses 1 of 4 cores because OMP_NUM_THREADS=1"),
        (4, 1.0, "slow", "only 1 can run at a time"),
        (2, 2.0, "ok", ""),
    ],
)
def test_threads_and_cores(threads: int, limit: float | None, state: str, words: str) -> None:
    fact = threads_fact(threads, Cores(8, 4, limit), f"OMP_NUM_THREADS={threads}")
    assert fact.state == state
    assert words in fact.advice


def test_wrong_arguments(tmp_path: Path) -> None:
    refused(command("doctor", "--encoder", tmp_path), "--encoder is for --measure")


@pytest.mark.slow
def test_the_speed_of_decoding_and_of_an_encoder(tmp_path: Path) -> None:
    assert measure_decoding() > 1
    run = small_encoder(tmp_path / "run")
    found = measure_embedding(run)
    assert found is not None
    name, rate = found
    assert name == str(run)
    assert rate > 1
