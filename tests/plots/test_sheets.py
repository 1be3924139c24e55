"""Sheets of tiles, judged by their pixels."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from PIL import Image

from finesight.plots import sheets, tiles
from finesight.plots.sheets import RetrievalRow
from png import Pixels, count, decode, flat


def where(pixels: Pixels, value: int) -> tuple[slice, slice]:
    """The bounding box of the pixels that have this gray value: a tile showing a flat image."""
    # Rows and columns in which the value is common, because single letters' pixels may have it by chance.
    hits = (pixels == value).all(-1)
    rows, columns = np.flatnonzero(hits.sum(1) > 40), np.flatnonzero(hits.sum(0) > 40)
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def dot(y: int, x: int, size: int = 7) -> NDArray[np.float64]:
    heat = np.zeros((size, size))
    heat[y, x] = 1
    return heat


# --- overlays


@pytest.mark.parametrize(("y", "x"), [(0, 0), (1, 5), (6, 2)])
def test_the_hot_spot_lies_where_the_map_has_it(y: int, x: int) -> None:
    pixels = decode(sheets.attention_overlays([flat(77)], [[dot(y, x)]], ["rationale"]))
    rows, columns = where(pixels, 77)
    side = columns.stop - columns.start
    tile = pixels[rows, columns.stop :].astype(int)
    tile = tile[:, -side - 14 :]  # the last tile and the margin right of it
    tile = np.where((tile == 255).all(-1, keepdims=True), 0, tile)  # paper is no heat
    hottest = np.argwhere(tile.sum(-1) > 0.98 * tile.sum(-1).max()).mean(0)
    start = np.flatnonzero(tile.sum((0, 2)))[0]
    found = (hottest - (0, start)) / side
    assert found == pytest.approx(((y + 0.5) / 7, (x + 0.5) / 7), abs=0.08)


def test_blend_upsamples_bilinearly_between_cell_centers() -> None:
    image = flat(100, 8, 8)
    expected = np.clip((np.arange(8) + 0.5) / 4 - 0.5, 0, 1)  # align_corners=False, two cells over eight pixels
    weight = 0.45 + 0.3 * expected[:, None]
    colors = (1 - weight) * 100 + weight * tiles.HEAT(expected)[:, :3] * 255
    got = tiles.blend(image, np.array([[0.0, 1.0]]))
    np.testing.assert_allclose(got, np.broadcast_to(colors, (8, 8, 3)), atol=1)


def test_blend_takes_the_color_out_of_the_image_so_that_only_heat_has_color() -> None:
    red, gray = np.zeros((4, 4, 3), np.uint8), flat(round(0.299 * 255), 4, 4)
    red[..., 0] = 255
    heat = np.full((2, 2), 0.5)
    np.testing.assert_allclose(tiles.blend(red, heat), tiles.blend(gray, heat), atol=1)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((7, 7)),
        np.full((7, 7), 3.0),
        np.full((7, 7), np.nan),
        np.full((7, 7), np.inf),
        np.full((7, 7), 0.3, np.float32) + np.float32(1e-8),
        np.ones((1, 1)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_map_without_contrast_shows_the_plain_image_and_says_so(values: NDArray[np.float64]) -> None:
    pixels = decode(sheets.attention_overlays([flat(77)], [[values]], ["x"]))
    rows, columns = where(pixels, 77)
    assert columns.stop - columns.start > 1.8 * (rows.stop - rows.start)  # both tiles are plain
    tiles = pixels[rows, columns]
    left, right = tiles[:, : tiles.shape[1] // 2 - 8], tiles[:, tiles.shape[1] // 2 + 8 :]
    assert (left == 77).all()
    assert (right != 77).any()  # the words


def test_non_finite_cells_are_cold_and_do_not_hide_the_rest() -> None:
    with_holes, cold = dot(2, 4), dot(2, 4)
    with_holes[0, 0], with_holes[6, 6], with_holes[5, 0] = np.nan, np.inf, -np.inf
    assert sheets.attention_overlays([flat(77)], [[with_holes]], ["x"]) == sheets.attention_overlays(
        [flat(77)], [[cold]], ["x"]
    )


def test_each_map_has_its_own_scale() -> None:
    small = sheets.attention_overlays([flat(77)], [[dot(1, 1) * 1e-9]], ["x"])
    assert small == sheets.attention_overlays([flat(77)], [[dot(1, 1) * 1e9 + 5]], ["x"])


def test_maps_that_do_not_fit_the_titles_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        sheets.attention_overlays([flat(1)], [[dot(1, 1)]], ["one", "two"])
    with pytest.raises(ValueError, match="zip"):
        sheets.attention_overlays([flat(1), flat(2)], [[dot(1, 1)]], ["one"])


@pytest.mark.parametrize("shape", [(1, 1), (3, 900), (900, 3), (2000, 1500)])
def test_any_image_shape_fits_its_tile(shape: tuple[int, int]) -> None:
    image = flat(77, *shape)
    pixels = decode(sheets.attention_overlays([image], [[dot(0, 0)]], ["x"]))
    assert pixels.shape[1] < 600
    assert count(pixels, "#4d4d4d") > 0


# --- retrieval rows


def row(right: list[bool | None], found: int = 4) -> RetrievalRow:
    return RetrievalRow(flat(200), [flat(90)] * found, right, "a", ["b"] * found, [0.5] * found)


def frames(png: bytes) -> tuple[int, int, int]:
    pixels = decode(png)
    return tuple(count(pixels, c) for c in (tiles.RIGHT, tiles.WRONG, tiles.UNKNOWN))  # type: ignore[return-value]


def test_frames_tell_right_wrong_and_unknown() -> None:
    tile = 1.18 * 144
    right, wrong, unknown = frames(sheets.retrieval_rows([row([True, True, True, False])]))
    assert right > 2.5 * wrong > 2.5 * 4 * tile
    assert unknown == 0
    assert frames(sheets.retrieval_rows([row([])]))[:2] == (0, 0)
    assert frames(sheets.retrieval_rows([row([None, None, True])]))[2] > 3 * 4 * tile


def test_the_frame_sits_around_its_own_image() -> None:
    pixels = decode(sheets.retrieval_rows([row([False, True], found=2)])).astype(int)
    red = np.argwhere((pixels == np.rint(np.array(to_rgb(tiles.WRONG)) * 255)).all(-1))[:, 1]
    green = np.argwhere((pixels == np.rint(np.array(to_rgb(tiles.RIGHT)) * 255)).all(-1))[:, 1]
    assert red.max() < green.min()


def test_the_verdict_is_also_a_sign_for_eyes_that_do_not_tell_red_from_green() -> None:
    assert [tiles.verdict(right)[1] for right in (True, False, None)] == ["✓", "✗", ""]


def test_rows_of_different_lengths_and_no_neighbors() -> None:
    rows = [row([True] * 4), RetrievalRow(flat(9), [flat(8)]), RetrievalRow(flat(9), [])]
    assert decode(sheets.retrieval_rows(rows)).shape[0] > 3 * 1.18 * 144
    decode(sheets.retrieval_rows([RetrievalRow(flat(9), [])]))


@pytest.mark.parametrize("name", ["$a_{", "\\frac", "鳥の名前", "line\nbreak", "\udcff.jpg", "x" * 500])
@pytest.mark.filterwarnings("error")
def test_any_name_can_be_drawn(name: str) -> None:
    found = RetrievalRow(flat(9), [flat(9)], [True], name, [name], [0.1])
    plain = decode(sheets.retrieval_rows([RetrievalRow(flat(9), [flat(9)])]))
    assert decode(sheets.retrieval_rows([found])).shape == plain.shape


# --- projections


def test_projections_come_in_order_of_variance_and_only_the_top() -> None:
    responses = np.stack([dot(0, 0), dot(3, 3), dot(6, 6)])[None]  # (1, 3, 7, 7)
    variances = np.array([1.0, 3.0, 2.0])
    png = sheets.projections([flat(77)], responses, variances, top=2)
    pixels = decode(png)
    rows, columns = where(pixels, 77)
    pitch = round((1.08 + 0.08) * 144)
    tiles = [pixels[rows, columns.start + i * pitch : columns.stop + i * pitch].astype(int) for i in (1, 2)]
    hot = [np.argwhere(tile.sum(-1) > 0.98 * tile.sum(-1).max()).mean(0) / len(tile) for tile in tiles]
    assert hot[0] == pytest.approx((0.5, 0.5), abs=0.08)
    assert hot[1] == pytest.approx((6.5 / 7, 6.5 / 7), abs=0.08)
    assert pixels.shape[1] < 3.2 * pitch


def test_a_projection_silent_on_one_image_looks_silent_there() -> None:
    responses = np.stack([dot(3, 3), dot(3, 3) * 0.01])[:, None]  # (2, 1, 7, 7)
    pixels = decode(sheets.projections([flat(77), flat(77)], responses, np.ones(1)))
    rows, columns = where(pixels, 77)
    side, pitch = columns.stop - columns.start, round((1.08 + 0.07) * 144)
    right = slice(columns.start + round(1.16 * 144), columns.stop + round(1.16 * 144))
    first, second = (pixels[rows.start + i * pitch : rows.start + i * pitch + side - 2, right] for i in (0, 1))
    assert first.max() > 150
    assert second.max() < 90


def test_projections_with_nan_variance_more_top_than_k_or_nothing() -> None:
    responses = np.random.default_rng(0).normal(size=(2, 3, 5, 5))
    responses[0, 1] = np.nan
    images = [flat(77), flat(78, 40, 90)]
    wide = decode(sheets.projections(images, responses, np.array([1.0, np.nan, 2.0]), top=8))
    narrow = decode(sheets.projections(images, responses, np.array([1.0, np.nan, 2.0]), top=2))
    assert wide.shape[1] > narrow.shape[1]
    decode(sheets.projections([], responses[:0], np.ones(3)))
    decode(sheets.projections(images, responses[:, :0], np.ones(0)))


def test_large_photographs_do_not_make_large_figures() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1200, 1600, 3), np.uint8)
    small = np.asarray(Image.fromarray(noise).resize((400, 300), Image.Resampling.LANCZOS))
    big, little = (sheets.retrieval_rows([RetrievalRow(i, [i] * 3)]) for i in (noise, small))
    assert decode(big).shape == decode(little).shape
    assert len(big) < 400_000
