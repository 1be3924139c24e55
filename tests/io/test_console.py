"""Counts with their nouns."""

from __future__ import annotations

import numpy as np
import pytest

from finesight.io.console import format_count
from finesight.search.build import IndexUpdate
from finesight.training.lengths import Circumstances, fit_batch


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 minutes"),
        (1, "1 minute"),
        (1.0, "1 minute"),
        (0.5, "0.5 minutes"),
        (2, "2 minutes"),
        (20.0, "20 minutes"),
        (0.1 + 0.2, "0.3 minutes"),
        (1234567, "1,234,567 minutes"),
        (1_000_000_000.0, "1,000,000,000 minutes"),
        (np.int64(12_000_000), "12,000,000 minutes"),
    ],
)
def test_one_is_singular(count: float, words: str) -> None:
    assert format_count(count, "minute") == words


def test_verbs_and_irregular_nouns_follow() -> None:
    assert format_count(1, "file was", "files were") == "1 file was"
    assert format_count(3, "class", "classes") == "3 classes"


def test_words_of_single_things() -> None:
    assert str(IndexUpdate(added=2, skipped=[("a.png", "empty")])).endswith("0 as before, 1 file left out")
    there = Circumstances(images=7, pretrained=True, gpu=False, processes=1, memory=None)
    assert fit_batch(there, 32, 128).reason.startswith("1 step an epoch")
