"""``finesight.sklearn.Embedder`` among scikit-learn's own tools."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import validate_data

import finesight
from finesight.errors import FineSightError
from finesight.features.encoder_config import EncoderConfig
from finesight.nn.backbone_config import BackboneConfig
from finesight.sklearn import Embedder

TINY: dict[str, Any] = {"backbone": "test_resnet", "weights": "random", "resolution": 32}


class OfNumbers(Embedder):
    """Scikit-learn's checks give tables of numbers: here each row becomes a small gray picture."""

    def fit(self, X: Any, y: Any = None) -> Any:
        return super().fit(self._pictures(X, reset=True), y)

    def transform(self, X: Any) -> Any:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        return super().transform(self._pictures(X, reset=False))

    def _pictures(self, X: Any, *, reset: bool) -> list[np.ndarray]:
        numbers = validate_data(self, X, reset=reset, dtype=np.float64)
        gray = (255 / (1 + np.exp(-numbers))).astype(np.uint8)  # (N, F)
        return [np.tile(np.resize(row, 40), (40, 1)) for row in gray]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.no_validation = True, False
        return tags


EXPECTED_FAILURES = {
    "check_methods_subset_invariance": "features depend on the images beside them by rounding, 1e-5 of their length: "
    "more than 1e-4 of a value that is nearly zero",
}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an encoder with random weights, always the same."""
    torch.manual_seed(0)
    backbone = BackboneConfig(name="test_resnet", weights="random")
    settings = EncoderConfig(method="untrained", resolution=32, pooling="average", backbone=backbone)
    folder = tmp_path_factory.mktemp("encoder")
    finesight.Encoder.untrained(settings).save(folder)
    return str(folder)


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(ready: str) -> None:
    checked = check_estimator(OfNumbers(ready), expected_failed_checks=EXPECTED_FAILURES)
    assert sum(one["status"] == "passed" for one in checked) > 30


@pytest.fixture(scope="module")
def images(birds: Path) -> tuple[list[str], list[str]]:
    files = sorted(birds.glob("test/*/*.png"))
    return [str(file) for file in files], [file.parent.name for file in files]


def test_in_a_pipeline_with_a_search_over_poolings(lcr: Path, images: tuple[list[str], list[str]]) -> None:
    files, labels = images
    pipeline = Pipeline([("embed", Embedder(lcr)), ("knn", KNeighborsClassifier(1))])
    scores = cross_val_score(pipeline, files, labels, cv=2)
    assert scores.shape == (2,)
    search = GridSearchCV(pipeline, {"embed__pooling": ["average", "gem"]}, cv=2, error_score="raise").fit(
        files, labels
    )
    assert search.best_params_["embed__pooling"] in ("average", "gem")
    encoder = finesight.load(lcr)
    by_hand = KNeighborsClassifier(1).fit(encoder.embed(files[::2]).numpy(), labels[::2])
    assert np.array_equal(
        pipeline.fit(files[::2], labels[::2]).predict(files[1::2]), by_hand.predict(encoder.embed(files[1::2]).numpy())
    )


def test_images_of_every_kind_give_the_same_features(lcr: Path, images: tuple[list[str], list[str]]) -> None:
    files = images[0][:4]
    pictures = [Image.open(file).convert("RGB") for file in files]
    embedder = Embedder(finesight.load(lcr)).fit(files)
    expected = embedder.transform(files)
    assert expected.dtype == np.float32
    assert np.array_equal(expected, finesight.load(lcr).embed(files).numpy())
    stacked = np.stack([np.asarray(picture) for picture in pictures])
    for given in (pictures, list(map(Path, files)), np.array(files), np.array(files)[:, None], list(stacked), stacked):
        assert np.array_equal(embedder.transform(given), expected)
    for wrong in (np.zeros((3, 4)), [1, 2], [], files[0], np.zeros((2, 8, 8, 3), np.float32)):
        with pytest.raises(FineSightError):
            embedder.transform(wrong)


def test_names_frames_copies_and_pickles(lcr: Path, images: tuple[list[str], list[str]]) -> None:
    pandas = pytest.importorskip("pandas")
    files = images[0][:3]
    embedder = clone(Embedder(str(lcr), pooling="average")).set_output(transform="pandas").fit(files)
    frame = embedder.transform(pandas.DataFrame({"path": files}))
    assert list(frame.columns) == list(embedder.get_feature_names_out())
    assert frame.columns[0] == "feature0"
    again = pickle.loads(pickle.dumps(embedder))
    assert np.array_equal(again.transform(files).to_numpy(), frame.to_numpy())
    assert np.array_equal(frame.to_numpy(), finesight.load(lcr).embed(files, "average").numpy())


@pytest.mark.slow
def test_fit_trains_without_labels(images: tuple[list[str], list[str]], tmp_path: Path) -> None:
    pictures = [Image.open(file) for file in images[0]]
    settings = {"method": "moco-v2", "epochs": 1, "batch_size": 8, "backbone.output_stride": 8}
    embedder = Embedder(**TINY, train="paper", train_settings=settings, out=tmp_path / "run").fit(pictures)
    assert embedder.encoder_.config.method == "moco-v2"
    assert (tmp_path / "run" / "metrics.csv").exists()
    assert embedder.transform(pictures[:2]).shape == (2, len(embedder.get_feature_names_out()))
    with pytest.raises(FineSightError, match="train=True"):
        Embedder(**TINY, out=tmp_path / "other").fit(pictures)
    with pytest.raises(FineSightError, match="not both"):
        Embedder(tmp_path / "run", train=True).fit(pictures)
