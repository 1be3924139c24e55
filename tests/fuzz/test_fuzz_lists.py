"""Damaged lists and annotations: a source or a sentence, never anything else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finesight.data.layouts.layout import LAYOUTS
from finesight.data.lists import read_list
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from fuzzing import damage, damages, fuzzed, within_bounds
from layouts import EXAMPLES, Example

FORMS = [builder for name in LAYOUTS for builder in EXAMPLES.get(name, [])]
PICTURES = {".jpg", ".jpeg", ".png"}
CELLS = st.one_of(
    st.sampled_from(["path", "label", "split", "train", "test", "val", "a.jpg", "b/c.png", "", '"', "\0", "\ufeff"]),
    st.text(max_size=20),
)
TABLES = st.lists(
    st.lists(CELLS, max_size=4).flatmap(lambda row: st.sampled_from(",;\t ").map(lambda mark: mark.join(row))),
    max_size=8,
).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))


def opened(path: Path) -> ImageSource | None:
    with within_bounds():
        try:
            return open_source(path)
        except FineSightError as error:
            sentence = str(error)
    assert sentence
    return None


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "list.csv"


@fuzzed
@given(data=st.one_of(TABLES, st.binary(max_size=200)))
def test_lists(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    with within_bounds(), suppress(FineSightError):
        rows = read_list(file)
        assert len(rows.paths) == len(rows.labels) > 0
    opened(file)


@pytest.fixture(scope="module", params=FORMS, ids=lambda builder: builder.__name__)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    builder: Callable[[Path], Example] = request.param
    return builder(tmp_path_factory.mktemp("fuzz"))


@fuzzed
@given(which=st.integers(0, 100), changes=damages())
def test_annotations(example: Example, which: int, changes: list[tuple[str, float, bytes]]) -> None:
    files = sorted(path for path in example.root.rglob("*") if path.is_file() and path.suffix not in PICTURES)
    if not files:
        pytest.skip("the folders are the annotation")
    file = files[which % len(files)]
    whole = file.read_bytes()
    try:
        file.write_bytes(damage(whole, changes))
        source = opened(example.root)
        assert source is None or len(source) > 0
    finally:
        file.write_bytes(whole)
