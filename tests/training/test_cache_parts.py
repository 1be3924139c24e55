"""Images in parts that cannot be shared are refused; what works is in tests/cluster/test_two_hosts.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from processes import TINY, command, refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cache-shards", "3"), "--batch-size 8 is not a multiple of --cache-shards"),
        (("--cache-shards", "64"), "too few for --cache-shards 64"),
        (("--cache-shards", "2", "--set", "focus.source=center"), "looks at all images"),
    ],
)
def test_parts_that_cannot_be(options: tuple[str, ...], words: str, birds: Path, tmp_path: Path) -> None:
    refused(command("train", "--data", birds, "--out", tmp_path / "run", "--epochs", "2", *TINY, *options), words)
