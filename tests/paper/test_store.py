"""Result files: whole or absent, and named when they are neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finesight.errors import FineSightError
from finesight.evaluation.retrieval import RetrievalScores
from finesight.io.atomic import write_atomic
from finesight.paper.store import REQUIRED, ResultStore, require_same_settings, settings_diff


def queries(count: int = 5) -> RetrievalScores:
    rng = np.random.default_rng(0)
    hit1, hit5, ap = rng.random(count) < 0.5, rng.random(count) < 0.8, rng.random(count)
    return RetrievalScores({"rank1": hit1, "rank5": hit5, "mAP": ap})


def result(system: str = "lcr", seed: int = 0) -> dict[str, Any]:
    return {key: None for key in REQUIRED} | {"method": system, "seed": seed}


@pytest.fixture
def files(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "results")


def test_what_was_written_is_read(files: ResultStore) -> None:
    assert files.read() == {}
    for system, seed in (("lcr", 0), ("lcr", 12), ("lcr-k1", 0)):
        files.write(system, seed, result(system, seed), queries())
    assert {system: sorted(seeds) for system, seeds in files.read().items()} == {"lcr": [0, 12], "lcr-k1": [0]}
    found = files.per_query("lcr", 12)
    np.testing.assert_array_equal(found["rank1"], queries().per_query["rank1"])
    np.testing.assert_array_equal(found["rank5"], queries().per_query["rank5"])
    np.testing.assert_allclose(found["mAP"], queries().per_query["mAP"], rtol=1e-6)


def test_a_write_that_fails_leaves_what_was_there(files: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write("lcr", 0, result(), queries())
    before = files.file("lcr", 0).read_bytes()

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match=r"(?i)no space"):
        files.write("lcr", 0, result() | {"more": 1}, queries(7))
    assert files.file("lcr", 0).read_bytes() == before
    assert len(files.per_query("lcr", 0)["mAP"]) == 5
    assert list(files.read()) == ["lcr"], "what is left of the write is no result"


def test_the_queries_come_first(files: ResultStore) -> None:
    """A result without its queries would count as done."""
    files.queries("lcr", 0).mkdir(parents=True)  # they cannot be written
    with pytest.raises(OSError, match="directory"):
        files.write("lcr", 0, result(), queries())
    assert files.read() == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b'{"method": "lcr", "se', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "is no JSON object"),
        (b"3", "is no JSON object"),
        (b"{}", "lacks dataset, classes, method"),
        (json.dumps(result("moco-v2")).encode(), "is that of 'moco-v2', seed 0"),
        (json.dumps(result(seed=1)).encode(), "is that of 'lcr', seed 1"),
        (json.dumps(result() | {"seed": "x"}).encode(), "is that of 'lcr', seed 'x'"),
    ],
)
def test_a_damaged_result_is_named(files: ResultStore, content: bytes, words: str) -> None:
    files.write("frozen", 0, result("frozen"), queries())
    files.file("lcr", 0).write_bytes(content)
    with pytest.raises(FineSightError, match=f"lcr-seed0.json {words}"):
        files.read()


@pytest.mark.parametrize("key", ["dataset", "settings", "commit"])
def test_a_missing_key_is_named(files: ResultStore, key: str) -> None:
    whole = result()
    del whole[key]
    write_atomic(files.file("lcr", 0), json.dumps(whole).encode())
    with pytest.raises(FineSightError, match=rf"lcr-seed0.json lacks {key}\. Delete it to run it again"):
        files.read()


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 and no more"])
def test_damaged_queries_are_named(files: ResultStore, content: bytes | None) -> None:
    files.write("lcr", 0, result(), queries())
    file = files.queries("lcr", 0)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(FineSightError, match=r"lcr-seed0.npz cannot be read: .* Delete lcr-seed0.json to run it again"):
        files.per_query("lcr", 0)
    np.savez(file, hit1=np.ones(3))
    with pytest.raises(FineSightError, match="hit5"):
        files.per_query("lcr", 0)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_that_both_have_are_compared_under_their_present_names() -> None:
    assert settings_diff({"old": 1, "both": 2}, {"new": 3, "both": 2}) == []
    assert settings_diff({"batch": 8, "views.grey": 0.2}, {"batch_size": 8, "views.gray": 0.2}) == []
    assert settings_diff({"batch": 8}, {"batch_size": 16}) == ["batch_size: 8 then, 16 now"]
    require_same_settings("It", {"epochs": 1}, {"epochs": 1}, "")
    with pytest.raises(FineSightError, match=r"^It has other settings:\n  epochs: 1 then, 2 now\nDelete it\.$"):
        require_same_settings("It", {"epochs": 1}, {"epochs": 2}, "Delete it.")
