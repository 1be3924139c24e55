import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finesight.errors import FineSightError
from finesight.evaluation.retrieval import cross_rows, neighbors, retrieval
from finesight.features.wide import WideRows
from reference.retrieval import ranking, retrieval_scores


def check(features: np.ndarray, labels: list[int], **options: int) -> None:
    got = retrieval(features.astype(np.float32), np.array(labels), **options)
    want = retrieval_scores(features, labels)
    assert got.per_query["rank1"].tolist() == want["hit1"]
    assert got.per_query["rank5"].tolist() == want["hit5"]
    np.testing.assert_allclose(got.per_query["mAP"], want["ap"], rtol=1e-13)
    assert got.summary() == {
        "rank1": pytest.approx(100 * np.mean(want["hit1"])),
        "rank5": pytest.approx(100 * np.mean(want["hit5"])),
        "mAP": pytest.approx(100 * np.mean(want["ap"])),
        "queries": len(want["ap"]),
        "lone": want["lone"],
    }


@pytest.mark.parametrize("seed", range(5))
def test_random_features_match_the_loop_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, 8, 60)  # -1: unlabeled
    labels[:2] = 100, 101  # alone in their classes
    features = rng.integers(-1000, 1000, (60, 12)) + 700 * np.eye(128)[labels][:, :12]
    check(features.round(), labels.tolist())


def test_by_hand() -> None:
    angle = np.radians([0.0, 10.0, 20.0, 41.0])
    features = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    scores = retrieval(features, np.array([0, 1, 0, 0]))
    # 0: [b a a] (1/2 + 2/3)/2; 2: [b a a] the same; 3: [a b a] (1 + 2/3)/2
    np.testing.assert_allclose(scores.per_query["mAP"], [7 / 12, 7 / 12, 5 / 6])
    assert scores.per_query["rank1"].tolist() == [False, False, True]
    assert scores.per_query["rank5"].all()
    assert (scores.queries, scores.lone) == (3, 1)
    assert scores.score("rank1") == pytest.approx(100 / 3)
    assert scores.score("mAP") == pytest.approx(200 / 3)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_small_cases_full_of_ties(data: st.DataObject) -> None:
    """Axis-parallel vectors of several lengths (cosines exactly -1, 0, 1), zero vectors and copies too."""
    n = data.draw(st.integers(3, 12))
    features = np.zeros((n, 3))
    for i in range(n):
        features[i, data.draw(st.integers(0, 2))] = data.draw(st.sampled_from([-3, 0, 1, 2, 5]))
    labels = data.draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n))
    known = [label for label in labels if label >= 0]
    if len(set(known)) < 2 or len(set(known)) == len(known):
        with pytest.raises(FineSightError):
            retrieval(features.astype(np.float32), np.array(labels))
        return
    check(features, labels, chunk=data.draw(st.integers(1, n + 1)))


def test_copies_tie_and_rank_by_index() -> None:
    rng = np.random.default_rng(0)
    features = np.repeat(rng.standard_normal((5, 300)), 7, axis=0).astype(np.float32)
    nearest, cosine = neighbors(features, [0, 10, 34], 8)
    assert nearest[0, :6].tolist() == [1, 2, 3, 4, 5, 6]
    assert nearest[1, :6].tolist() == [7, 8, 9, 11, 12, 13]
    assert nearest[2, :6].tolist() == [28, 29, 30, 31, 32, 33]
    assert (cosine[:, :6] == cosine[:, :1]).all()


def test_zero_feature_is_like_nothing_and_finite() -> None:
    features = np.array([[0, 0], [1, 0], [2, 0], [-1, 0]], dtype=np.float32)
    check(features, [0, 0, 1, 1])
    nearest, cosine = neighbors(features, [0, 1], 3)
    assert nearest.tolist() == [[1, 2, 3], [2, 0, 3]]
    assert cosine.tolist() == [[0, 0, 0], [1, 0, -1]]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_length_of_features_does_not_matter(scale: float) -> None:
    rng = np.random.default_rng(1)
    features = rng.standard_normal((40, 6)) * rng.uniform(0.1, 9, (40, 1))
    labels = rng.integers(0, 4, 40)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    got = retrieval((features * scale).astype(np.float32), labels)
    np.testing.assert_array_equal(got.per_query["mAP"], retrieval(unit.astype(np.float32), labels).per_query["mAP"])


@pytest.mark.parametrize("block_bytes", [1, 5000, 2**26])
def test_chunks_change_nothing(block_bytes: int) -> None:
    """Bit for bit, though near-copies differ by less than float32 summation error would."""
    rng = np.random.default_rng(2)
    features = (rng.standard_normal((1, 512)) + 1e-6 * rng.standard_normal((150, 512))).astype(np.float32)
    features[100:] = features[:50]
    labels = rng.integers(0, 9, 150)
    whole = retrieval(features, labels)
    for chunk in (1, 7, 149, 150, 1000):
        part = retrieval(features, labels, chunk=chunk, block_bytes=block_bytes)
        assert part.summary() == whole.summary()
        np.testing.assert_array_equal(part.per_query["mAP"], whole.per_query["mAP"])


def test_similarities_are_exact_and_as_fine_as_float32() -> None:
    """Inner products of unit features in multiples of 2⁻²⁴, against whole numbers of any size."""
    features = np.random.default_rng(3).standard_normal((6, 2048)).astype(np.float32)
    got = np.stack([row.copy() for row in cross_rows(features, features)])
    unit = features.astype(np.float64) / np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    whole = [[int(v) for v in row] for row in np.round(unit * 2**24)]
    want = [[sum(a * b for a, b in zip(p, q, strict=True)) for q in whole] for p in whole]
    assert [[int(v * 2.0**48) for v in row] for row in got] == want
    assert np.abs(got - unit @ unit.T).max() < 2e-7


def test_unlabeled_images_take_no_part() -> None:
    rng = np.random.default_rng(5)
    features = rng.standard_normal((30, 8)).astype(np.float32)
    labels = rng.integers(0, 4, 30)
    labels[::3] = -1
    features[::3] = features[1]  # would be everyone's neighbor
    kept = labels >= 0
    np.testing.assert_array_equal(
        retrieval(features, labels).per_query["mAP"], retrieval(features[kept], labels[kept]).per_query["mAP"]
    )


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-1, -1, -1], "no image has one"),
        ([3, 3, -1], "all 2 labeled images are of one class"),
        ([0, 1, -1], "each of the 2 classes has one"),
        ([0, 1, 2], "each of the 3 classes has one"),
        ([], "no image has one"),
    ],
)
def test_labels_that_give_no_score(labels: list[int], message: str) -> None:
    with pytest.raises(FineSightError, match=re.escape(message)):
        retrieval(np.eye(3, dtype=np.float32)[: len(labels)], np.array(labels, dtype=np.int64))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite(bad: float) -> None:
    features, half = np.ones((4, 3), dtype=np.float32), WideRows.empty(4, 3)
    features[2, 1] = bad
    half[:] = features
    for rows in (features, half):
        with pytest.raises(FineSightError, match="not finite"):
            retrieval(rows, np.array([0, 0, 1, 1]))
    with pytest.raises(ValueError, match="4 features"):
        retrieval(features, np.array([0, 1]))


@pytest.mark.parametrize("seed", range(3))
def test_neighbors_match_the_reference_ranking(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.integers(-9, 9, (25, 5))
    queries = [24, 0, 7]
    nearest, cosine = neighbors(features.astype(np.float32), queries, 6)
    for row, query in zip(nearest, queries, strict=True):
        assert row.tolist() == ranking(features, query, list(range(25)))[:6]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    want = np.stack([unit[row] @ unit[query] for row, query in zip(nearest, queries, strict=True)])
    np.testing.assert_allclose(cosine, want, atol=1e-6)
    nearest, cosine = neighbors(features.astype(np.float32), [], 3)
    assert nearest.shape == cosine.shape == (0, 3)
    assert neighbors(np.eye(2, dtype=np.float32), [0, 1], 5)[0].tolist() == [[1], [0]], "there is one other"


@pytest.mark.slow
def test_memory_stays_bounded() -> None:
    """3,000 of 20,000 images as queries (for time): their similarities together would take 480 MB."""
    script = """
import resource, numpy as np
from finesight.evaluation.retrieval import retrieval
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
rng = np.random.default_rng(0)
features, labels = rng.standard_normal((20_000, 8)).astype("f4"), np.arange(20_000)
labels[:3000] = np.arange(3000) % 100
retrieval(features[:100], np.arange(100) % 2)
before = peak()
assert retrieval(features, labels).queries == 3000
print(peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 400  # MB


# --- wide features ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_bytes", [8 * 80 * 20, 2**26])
def test_wide_features_are_compared_as_narrow_ones_are(block_bytes: int) -> None:
    """Bit for bit, with copies, zeros and images without a label."""
    rng = np.random.default_rng(6)
    features = (rng.standard_normal((1, 300)) + 1e-3 * rng.standard_normal((80, 300))).astype(np.float16)
    features[60:] = features[:20]
    features[5] = 0
    labels = rng.integers(-1, 6, 80)
    narrow = retrieval(features.astype(np.float32), labels)
    nearest = neighbors(features.astype(np.float32), [3, 5, 79], 7)
    half = WideRows(features, np.arange(80), rng.uniform(0.1, 9, 80))
    for matrix in (WideRows.of(features.astype(np.float32)), half.times(1 / half.scale)):
        for chunk in (None, 7):
            wide = retrieval(matrix, labels, chunk=chunk, block_bytes=block_bytes)
            assert wide.summary() == narrow.summary()
            np.testing.assert_array_equal(wide.per_query["mAP"], narrow.per_query["mAP"])
        for one, other in zip(neighbors(matrix, [3, 5, 79], 7), nearest, strict=True):
            np.testing.assert_array_equal(one, other)
    scaled = retrieval(half, labels)
    np.testing.assert_allclose(scaled.per_query["mAP"], narrow.per_query["mAP"], atol=0.02)


def test_16_bits_are_enough() -> None:
    rng = np.random.default_rng(7)
    labels = np.arange(120) % 6
    features = (rng.standard_normal((6, 20_000))[labels] + 12 * rng.standard_normal((120, 20_000))).astype(np.float32)
    half = WideRows.empty(120, 20_000)
    half[:] = features
    exact, kept = retrieval(features, labels), retrieval(half, labels)
    assert 20 < exact.score("rank1") < 100
    assert kept.per_query["rank1"].tolist() == exact.per_query["rank1"].tolist()
    np.testing.assert_allclose(kept.per_query["mAP"], exact.per_query["mAP"], atol=0.01)


@pytest.mark.slow
def test_wide_features_are_never_copied() -> None:
    """500 images of 60,000 numbers: 60 MB in 16 bits, 120 in float32. Searching them takes half of the former."""
    script = """
import resource, numpy as np
from finesight.evaluation import retrieval as module
from finesight.features import wide as store
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
store.BLOCK_BYTES = 2 * 2**20
rng = np.random.default_rng(0)
features = store.WideRows.empty(500, 60_000)
for start in range(0, 500, 50):
    features[start : start + 50] = rng.standard_normal((50, 60_000), dtype="f4")
labels = np.arange(500) % 10
labels[::50] = -1
module.retrieval(features[:60], labels[:60])
before = peak()
assert module.retrieval(features, labels, chunk=200, block_bytes=2 * 2**20).queries == 490
module.neighbors(features, [0, 1, 2], 5)
print(peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 30  # MB


# --- the released code's order of ties --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_read_backwards_the_last_of_equals_comes_first(seed: int) -> None:
    """Turned around, the images have their ties the other way round."""
    rng = np.random.default_rng(seed)
    features = np.eye(3)[rng.integers(0, 3, 14)] * rng.integers(1, 4, (14, 1))
    labels = rng.integers(0, 3, 14)
    got = retrieval(features.astype(np.float32), labels, ties="last")
    want = retrieval_scores(features[::-1], labels[::-1].tolist())
    assert got.per_query["rank1"].tolist() == want["hit1"][::-1]
    assert got.per_query["rank5"].tolist() == want["hit5"][::-1]
    np.testing.assert_allclose(got.per_query["mAP"], want["ap"][::-1], rtol=1e-13)
    assert not np.array_equal(got.per_query["mAP"], retrieval(features.astype(np.float32), labels).per_query["mAP"]), (
        "ties do matter here"
    )
