"""An encoder as a scikit-learn transformer: images in, features out.

>>> pipeline = Pipeline([("embed", finesight.sklearn.Embedder("runs/birds")), ("knn", KNeighborsClassifier())])
>>> cross_val_score(pipeline, files, labels)
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from finesight.api import frozen, load, train
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from finesight.io.progress import track
from finesight.nn.backbone_config import BackboneConfig
from finesight.training.config import RuntimeConfig

BATCH = 64  # pictures that are decoded and held at a time


class Embedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns images into features, in a ``Pipeline`` or alone.

    ``X`` is a list or array of paths, PIL images or uint8 arrays (height, width, 3); also one array (N, height, width,
    3). Labels are never looked at.

    Parameters
    ----------
    encoder
        A run or encoder folder, ``hf-hub:OWNER/NAME``, or an ``Encoder``. None: ``backbone`` with its own weights.
    backbone, weights, resolution
        Without an encoder: a timm model, its weights (as for ``finesight evaluate``) and the pixels of a view.
    pooling
        How a map becomes a feature; None: as the encoder was trained, or the average.
    train
        False: ``fit`` learns nothing. True, or the name of a preset: ``fit`` trains on ``X``, without labels.
    train_settings
        Settings of the training, as for ``finesight.train``: ``{"epochs": 20}``.
    out
        The run folder of the training, which the same call continues; None: a folder that is removed after it.
    progress
        Whether to show progress bars.

    Attributes
    ----------
    encoder_
        The ``Encoder`` that makes the features.
    """

    def __init__(
        self,
        encoder: str | Path | Encoder | None = None,
        *,
        backbone: str = "resnet50",
        weights: str = "imagenet",
        resolution: int | None = None,
        pooling: str | None = None,
        train: bool | str = False,
        train_settings: dict[str, Any] | None = None,
        out: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        self.encoder, self.backbone, self.weights, self.resolution = encoder, backbone, weights, resolution
        self.pooling, self.train, self.train_settings, self.out = pooling, train, train_settings, out
        self.progress = progress

    def fit(self, X: Any, y: Any = None) -> Self:
        """Make the encoder ready; with ``train`` it learns from the images ``X``. ``y`` is not used."""
        images = as_images(X)
        if self.train is False and (self.train_settings or self.out is not None):
            raise FineSightError("train_settings and out are for train=True.")
        if self.train is not False and self.encoder is not None:
            raise FineSightError("Give either an encoder that is ready or train, not both.")
        ready = self._trained(images) if self.train is not False else self._ready()
        self.encoder_ = ready if self.pooling in (None, ready.config.pooling) else ready.with_pooling(str(self.pooling))
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the features (N, D) of the images, float32, not normalized."""
        check_is_fitted(self)
        images = as_images(X)
        starts = range(0, len(images), BATCH)
        parts = ((start, self.encoder_.embed(images[start : start + BATCH]).numpy()) for start in starts)
        return np.concatenate([part for _, part in track(parts, len(starts), "embedding", show=self.progress)])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return ``feature0`` to ``featureD``."""
        check_is_fitted(self)
        width = self.encoder_.feature_width(self.encoder_.config.pooling)
        return np.array([f"feature{number}" for number in range(width)], dtype=object)

    def _ready(self) -> Encoder:
        if isinstance(self.encoder, Encoder):
            return self.encoder
        if self.encoder is not None:
            return load(self.encoder)
        return frozen(BackboneConfig(name=self.backbone, weights=self.weights), self.resolution)

    def _trained(self, images: list[Any]) -> Encoder:
        """Train on the images: those that are no files are written into a folder for it."""
        scratch = Path(tempfile.mkdtemp(prefix="finesight-sklearn-"))
        try:
            lines = [_file(image, scratch / f"{number:08d}.png") for number, image in enumerate(images)]
            (listed := scratch / "images.txt").write_text("\n".join(lines), "utf-8", "surrogateescape")
            given: dict[str, Any] = {"backbone.name": self.backbone, "backbone.weights": self.weights}
            if self.resolution is not None:
                given["views.resolution"] = self.resolution
            settings = {**given, **(self.train_settings or {})}
            preset = self.train if isinstance(self.train, str) else "auto"
            runtime = RuntimeConfig(progress=self.progress)
            out = scratch / "run" if self.out is None else Path(self.out)
            return train(listed, out, runtime=runtime, preset=preset, **settings)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.no_validation = True  # of numbers: images are none
        tags.transformer_tags.preserves_dtype = []  # features are float32, whatever the pixels are
        return tags


def as_images(X: Any) -> list[Any]:
    """Return what ``Encoder.embed`` takes; raise ``FineSightError`` for what are no images."""
    if isinstance(X, (str, os.PathLike, Image.Image)):
        raise FineSightError("X must be a list of images, not one: write [image].")
    if hasattr(X, "iloc") and getattr(X, "ndim", 1) == 2 and X.shape[1] == 1:  # a data frame of paths
        X = X.iloc[:, 0]
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[1] == 1 and X.dtype.kind in "OU":
        X = X[:, 0]
    images = [_image(image) for image in X]
    if not images:
        raise FineSightError("There are no images in X.")
    return images


def _image(image: Any) -> Any:
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in (2, 3):
        try:
            return Image.fromarray(image)
        except TypeError:
            pass
    elif isinstance(image, (str, Path, Image.Image)):
        return str(image) if isinstance(image, np.str_) else image
    raise FineSightError(
        "X must hold paths, PIL images or uint8 arrays (height, width, 3), not "
        f"{getattr(image, 'dtype', type(image).__name__)} {getattr(image, 'shape', '')}".rstrip()
        + "."
    )


def _file(image: Any, place: Path) -> str:
    """Return the path of an image, which is written if it is in memory."""
    if not isinstance(image, Image.Image):
        return str(Path(image).absolute())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image.save(place)
    return str(place)
