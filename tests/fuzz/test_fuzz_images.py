"""Damaged images: a picture or a reason, never anything else."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from finesight.data.decode import read_image_and_size, read_mask
from finesight.data.geometry import read_resized
from finesight.errors import SkipImage
from fuzzing import damage, damages, fuzzed, within_bounds

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

PIXELS = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((80, 60))
FRAMES: dict[str, Any] = {"save_all": True, "append_images": [PIXELS.rotate(90), PIXELS]}
KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("JPEG", "RGB", {}),
    ("JPEG", "CMYK", {"progressive": True}),
    ("MPO", "RGB", FRAMES),
    ("PNG", "RGBA", {}),
    ("PNG", "P", {"transparency": 0}),
    ("PNG", "RGB", FRAMES),
    ("PNG", "I;16", {}),
    ("WEBP", "RGBA", {}),
    ("WEBP", "RGB", FRAMES),
    ("GIF", "P", FRAMES),
    ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    ("TIFF", "RGB", {"compression": "jpeg"}),
    ("TIFF", "F", {}),
    ("TIFF", "1", {"compression": "group4"}),
    ("BMP", "P", {}),
]


def saved(kind: str, mode: str, options: dict[str, Any]) -> bytes:
    picture = Image.fromarray(np.asarray(PIXELS.convert("L")).astype(np.uint16)) if mode == "I;16" else None
    buffer = io.BytesIO()
    (picture or PIXELS.convert(mode)).save(buffer, kind, **options)
    return buffer.getvalue()


FILES = [saved(*kind) for kind in KINDS]


def usable(read: Callable[[], Any]) -> Any:
    """What comes out, or None with a reason."""
    with within_bounds():
        try:
            return read()
        except SkipImage as skip:
            reason = str(skip)
    assert reason
    assert "\n" not in reason
    return None


def test_whole_files_are_read() -> None:
    for data in FILES:
        assert read_image_and_size(io.BytesIO(data), 16)[1] == (80, 60)


@fuzzed
@given(st.sampled_from(FILES), damages(), st.sampled_from([None, 1, 16, 500]), st.sampled_from([0, 5]))
def test_images(data: bytes, changes: list[tuple[str, float, bytes]], at_least: int | None, trim: int) -> None:
    found = usable(lambda: read_image_and_size(io.BytesIO(damage(data, changes)), at_least, trim))
    if found is not None:
        assert found[0].mode == "RGB"
        assert min(*found[0].size, *found[1]) > 0


@fuzzed
@given(
    st.one_of(
        st.binary(max_size=300),
        st.tuples(st.sampled_from(FILES), st.integers(1, 40), st.binary()).map(
            lambda parts: parts[0][: parts[1]] + parts[2]
        ),
    )
)
def test_beginnings_and_noise(data: bytes) -> None:
    usable(lambda: read_resized(io.BytesIO(data), 32))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "mask.png"


@fuzzed
@given(data=st.sampled_from(FILES), changes=damages())
def test_masks(file: Path, data: bytes, changes: list[tuple[str, float, bytes]]) -> None:
    file.write_bytes(damage(data, changes))
    mask = usable(lambda: read_mask(file))
    assert mask is None or (mask.ndim == 2 and mask.dtype == np.bool_)
