"""The estimates of docs/scaling.md: the arithmetic, done again by hand, and the tables made of it."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import pytest

from finesight.paper.markdown import update_text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_arithmetic() -> None:
    """From the measured rates, without the code of the script."""
    schedule = read("scaling/schedule")
    (row,) = [r for r in read("speed/embedding")["rows"] if (r["backbone"], r["resolution"]) == ("resnet50", 224)]
    (small,) = [
        r["reading_ms"] for r in read("speed/decoding")["rows"] if (r["photos"], r["threads"]) == ("0.1 megapixels", 2)
    ]
    each = 2 / row["images_per_second"]["finesight, many"] + small / 1000  # core-seconds
    writers = read("scaling/writers")["images_per_second"]
    compared = read("search/compare")["build"]
    for images, machines in ((10**6, 10), (10**8, 1000), (10**9, 10_000)):
        found = schedule[str(images)]
        assert found["core_hours_embedding_small"] == pytest.approx(images * each / 3600)
        ideal = images * each / 2 / machines / 3600
        assert found["embedding_small"]["hours"] == pytest.approx(ideal, rel=0.05)
        capped = found["embedding_small"]["hours_with_one_writer"].values()
        for hours, rate in zip(capped, writers.values(), strict=True):  # as long as the slower of both takes
            assert hours == pytest.approx(max(ideal, images / rate / 3600), rel=0.05)
        for name, kind in (("folder", "faiss"), ("Milvus", "milvus")):
            index = found["index"][name]
            seconds, disk = compared[kind]["finish_seconds"], compared[kind]["disk_bytes"]
            assert index["build_hours_most"] == pytest.approx(images / 1e5 * seconds / 3600)
            assert index["disk_gb"] == pytest.approx(images / 1e5 * disk / 1e9)
        graph = images * 4 * (256 + 2 * 32 + 4)
        assert found["index"]["folder"]["memory_gb"] == pytest.approx((graph if graph <= 2**31 else images * 72) / 1e9)
        assert found["index"]["Milvus"]["memory_gb"] == pytest.approx(images * (2048 + 64) * 4 / 1e9)
        assert found["features_gb"] == images * 2048 * 4 / 1e9


def test_schedule_and_tables() -> None:
    """The committed schedule is what the script makes of the committed rates, and the page shows it."""
    script = runpy.run_path(str(ROOT / "benchmarks" / "scaling.py"))
    schedule = read("scaling/schedule")
    again = script["estimate"](10**6, 10, script["Rates"].read(), script["read_writers"]())
    assert json.loads(json.dumps(again)) == schedule[str(10**6)]
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert update_text(text, script["blocks"]()) == text, "run `python benchmarks/scaling.py -o results/scaling`"


def test_a_writer_that_is_slower_than_the_machines() -> None:
    """It has nothing to do until the first shard comes, and then works without a pause."""
    play = runpy.run_path(str(ROOT / "benchmarks" / "scaling.py"))["play_embedding"]
    found = play(256_000, 10, 20.0, writers={"slow": 10.0, "fast": 1e9})
    one_by_one = found["hours_with_one_writer"]
    assert math.isclose(one_by_one["fast"], found["hours"], rel_tol=1e-6)
    assert 25_600 < one_by_one["slow"] * 3600 < 25_600 + 2 * 256 / 20
