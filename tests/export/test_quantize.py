"""int8: what it costs is measured on pictures it was not calibrated with, and said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from finesight.errors import FineSightError
from finesight.export.quantize import Quantized, before_phi, compare_outputs, open_calibration, quantize
from networks import ExportedRun


def test_it_is_smaller_and_near(exported: ExportedRun) -> None:
    small = exported.printed["int8"]
    assert (small["calibrated"], small["compared"]) == (12, 12)
    assert small["bytes"] == exported.int8.stat().st_size < exported.printed["bytes"] / 2
    assert 0.9 < small["feature_cosine_min"] <= small["feature_cosine_median"] < 1
    assert 0 < small["attention_error"] < 0.2
    assert 0 <= small["nearest_kept"] <= 1
    assert {"neighbours", "neighbours_kept", "warnings"} <= small.keys()


def test_the_branch_and_the_pooling_stay_as_they_are(exported: ExportedRun) -> None:
    before, after = onnx.load(str(exported.file)), onnx.load(str(exported.int8))
    chosen = set(before_phi(before.graph))
    convolutions = [node for node in before.graph.node if node.op_type == "Conv"]
    assert [node.name in chosen for node in convolutions] == [False, *[True] * (len(convolutions) - 2), False]
    kept = [node for node in after.graph.node if node.op_type == "Conv" and not _quantized(after.graph, node)]
    assert len(kept) == 2  # of pixels, and of the branch


def _quantized(graph: onnx.GraphProto, node: onnx.NodeProto) -> bool:
    makers = {name: maker.op_type for maker in graph.node for name in maker.output}
    return makers.get(node.input[0]) == "DequantizeLinear"


def test_it_says_what_it_is_and_poor_quality_in_words(exported: ExportedRun) -> None:
    whole, less = (
        json.loads({entry.key: entry.value for entry in onnx.load(str(file)).metadata_props}["finesight"])
        for file in (exported.file, exported.int8)
    )
    assert less == {**whole, "precision": "int8", "calibrated": 12}
    good = Quantized(Path("small.onnx"), 1, 12, 12, 0.9, 0.99, 0.9, 0.99, 0.1, 0.75, 5, 0.8)
    assert good.warnings() == []
    (words,) = replace(good, feature_cosine_median=0.9).warnings()
    assert "0.900" in words
    assert "25%" in words


def test_what_is_compared_against_loops() -> None:
    rng = np.random.default_rng(0)
    whole = [rng.normal(size=(23, 6)), rng.normal(size=(23, 5)), rng.random((23, 3, 3))]
    small = [part + 0.3 * rng.normal(size=part.shape) for part in whole]
    found = compare_outputs([part.astype(np.float32) for part in whole], [part.astype(np.float32) for part in small])

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))

    def nearest(features: np.ndarray, row: int) -> list[int]:
        others = [other for other in range(23) if other != row]
        return sorted(others, key=lambda other: -cosine(features[row], features[other]))

    near = [(nearest(whole[0], row), nearest(small[0], row)) for row in range(23)]
    cosines = [cosine(a, b) for a, b in zip(whole[0], small[0], strict=True)]
    assert found["feature_cosine_min"] == pytest.approx(min(cosines), abs=1e-5)
    assert found["feature_cosine_median"] == pytest.approx(sorted(cosines)[11], abs=1e-5)
    assert found["nearest_kept"] == pytest.approx(sum(a[0] == b[0] for a, b in near) / 23)
    assert found["neighbors"] == 10
    assert found["neighbors_kept"] == pytest.approx(sum(len({*a[:10]} & {*b[:10]}) for a, b in near) / 230)
    assert found["attention_error"] == pytest.approx(abs(whole[2] - small[2]).sum() / 207, abs=1e-6)


def test_too_few_pictures(exported: ExportedRun, unlabeled: Path, tmp_path: Path) -> None:
    for name in ("image-00.png", "image-01.png", "image-02.png", "broken.png"):
        (tmp_path / name).write_bytes((unlabeled / name).read_bytes())
    out = tmp_path / "small.onnx"
    with pytest.raises(FineSightError, match="at least 4 readable pictures"):
        quantize(exported.file, out, tmp_path, progress=False)
    (tmp_path / "broken.png").unlink()
    with pytest.raises(FineSightError, match="at least 4 pictures"):
        open_calibration(tmp_path)
    assert not out.exists()
