"""The object that is called with images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from finesight.errors import FineSightError
from finesight.explain.explainer import Explainer, SafeNames
from finesight.features.encoder import Encoder
from finesight.plots.tiles import blend
from finesight.training.run_folder import RunFolder


@pytest.fixture(scope="module")
def files(birds: Path) -> list[Path]:
    return sorted(birds.glob("test/*/*.png"))[:3]


def test_what_is_to_be_seen_is_what_the_encoder_has(lcr: Path, files: list[Path]) -> None:
    explainer, encoder = Explainer.load(lcr), Encoder.load(lcr)
    assert explainer.no_gradcam == ""
    assert explainer(Image.open(files[0])).names == ["image-1"]
    found = explainer(files)
    encoded = encoder.encode(encoder.prepare(files), ())
    np.testing.assert_allclose(found.mask, encoded.masks["rationale"], atol=1e-6)
    np.testing.assert_allclose(found.energy, encoded.masks["energy"], atol=1e-6)
    assert len(found) == 3
    assert found.names == [file.stem for file in files]
    assert found.pixels.shape == (3, 32, 32, 3)
    assert found.gradcam is not None
    assert found.gradcam.shape == (3, 4, 4)
    assert encoder.branch is not None
    assert found.responses is not None
    responses = encoder.branch.responses(encoder.backbone(encoder.prepare(files))).detach().numpy()
    np.testing.assert_allclose(found.responses, responses, atol=1e-5)
    np.testing.assert_array_equal(found.winners, found.responses.argmax(1))
    assert found.variances is not None
    for i, k in np.ndindex(3, 4):
        assert found.variances[i, k] == pytest.approx(np.var(found.responses[i, k].ravel()), rel=1e-4)
    assert found.top(0, 4) == sorted(range(4), key=lambda k: -found.variances[0, k])


def test_overlays_are_scaled_to_their_own_range(lcr: Path, files: list[Path]) -> None:
    found = Explainer.load(lcr)(files)
    for of in ("mask", "energy", "gradcam", 2):
        heat = found.heat(1, of).astype(np.float64)
        wanted = blend(found.pixels[1], (heat - heat.min()) / (heat.max() - heat.min()))
        assert np.abs(found.overlay(1, of).astype(int) - wanted).max() <= 1
    assert found.overlay(0, side=50).shape == (50, 50, 3)
    flat = found.row(0)
    flat.mask[:] = 0.5
    np.testing.assert_array_equal(flat.overlay(0), flat.pixels[0])


@pytest.mark.parametrize("of", ["attention", 4, -1])
def test_a_map_that_is_not_there_is_said(lcr: Path, files: list[Path], of: str | int) -> None:
    with pytest.raises(FineSightError, match="There is no"):
        Explainer.load(lcr)(files[0]).overlay(0, of)


def test_without_a_rationale_and_without_a_run(lcr: Path, files: list[Path], tmp_path: Path) -> None:
    explainer = Explainer(Encoder.load(lcr).with_pooling("average"))
    assert "not given the run" in explainer.no_gradcam
    found = explainer(files[0])
    np.testing.assert_array_equal(found.mask, found.energy)
    assert found.gradcam is found.responses is found.winners is found.variances is None
    assert found.top(0) == []
    with pytest.raises(FineSightError, match="no GradCAM"):
        found.overlay(0, "gradcam")
    assert found.save(tmp_path) == [[f"{files[0].stem}-energy.png"]]


def test_saved_files_are_the_overlays(lcr: Path, files: list[Path], tmp_path: Path) -> None:
    found = Explainer(Encoder.load(lcr), RunFolder(lcr))(files)
    saved = found.save(tmp_path / "new" / "folder", projections=2)
    assert len(saved) == 3
    assert len({name for names in saved for name in names}) == 15
    assert sorted(name for names in saved for name in names) == sorted(
        p.name for p in (tmp_path / "new/folder").iterdir()
    )
    best = found.top(1, 1)[0]
    stem = saved[1][0].removesuffix("-mask.png")
    for name, of in ((f"{stem}-mask.png", "mask"), (f"{stem}-projection-{best}.png", best)):
        with Image.open(tmp_path / "new/folder" / name) as image:
            np.testing.assert_array_equal(np.asarray(image), found.overlay(1, of))


def test_names_are_safe_and_never_the_same() -> None:
    names = SafeNames()
    odd = ["a/b.c", "A/B.C", "a\\b:c", "../../etc/passwd", "", "...", "чайка №1", "b\udce9d", "x" * 300, "é" * 300]
    safe = [names.add(name) for name in odd] + [names.add("x" * 300)]
    assert len({name.casefold() for name in safe}) == len(safe)
    for name in safe:
        assert 0 < len(name.encode()) <= 110
        assert not set(name) & set('/\\:*?"<>|\0')
        assert not name.startswith(".")
    assert safe[0] == "a_b.c"
    assert safe[6] == "чайка__1"


def test_an_output_that_cannot_be_written_is_said(lcr: Path, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FineSightError, match="cannot be made a folder"):
        Explainer(Encoder.load(lcr))(files[0]).save(tmp_path / "file" / "below")
