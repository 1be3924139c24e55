"""The text side of a CLIP-like model: words become a vector that features of pictures are compared with."""

from __future__ import annotations

import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image

from finesight.errors import FineSightError
from finesight.features.embedder import unit
from finesight.features.preprocess import picture_view
from finesight.features.types import Embedder, Floats

SPACE = "class-token"  # the pooling whose features the model projects to where its words are
SAME = 0.999  # least cosine of what both networks make of one picture: rounding alone leaves more
BLOCKS = 4096  # of features whose lengths are kept: some million pictures
CONFIG = "open_clip_config.json"


class TextTower:
    """A model of open_clip whose image side made the features of an index.

    A feature of a picture is projected as the model itself does, and its cosine to the words is the score.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        projection = getattr(model.visual, "proj", None)
        if projection is None or projection.ndim != 2:
            raise FineSightError(
                f"The image side of {name} is no vision transformer with a projected class token, as CLIP's are: "
                "FineSight cannot search by its words."
            )
        self.name, self._model, self._tokenizer = name, model, tokenizer
        self.fingerprint = ""  # of the encoder that it belongs to
        self._projection: Floats = projection.detach().float().numpy()  # (D, E)
        self._lengths: dict[tuple[int, int], Floats] = {}  # of projected features, by their checksum and number

    @classmethod
    def load(cls, where: str | Path, embedder: Embedder) -> Self:
        """Open a model for the index that ``embedder`` embeds for.

        ``where`` is a folder as models of open_clip have on the Hugging Face hub (open_clip_config.json and the
        weights), or ``hf-hub:OWNER/NAME``. ``FineSightError`` if it cannot be opened, or if its image side is not the
        network of the embedder.
        """
        for package in ("torch", "open_clip"):
            if find_spec(package) is None:
                raise FineSightError("Searching by words needs open_clip: pip install 'finesight[text]'.")
        import open_clip

        name = str(where)
        if not name.startswith("hf-hub:"):
            if not (Path(where) / CONFIG).is_file():
                raise FineSightError(f"{where} is no model of open_clip: it is a folder that has no {CONFIG}.")
            name = f"local-dir:{where}"
        try:
            model = open_clip.create_model(name, require_pretrained=True).eval()
            tokenizer = open_clip.get_tokenizer(name)
        except Exception as error:  # whatever a damaged file makes open_clip, safetensors or the hub raise
            raise FineSightError(f"open_clip cannot open {where}: {error}") from error
        tower = cls(model, tokenizer, str(where))
        tower.require_same(embedder)
        return tower

    def vector(self, words: str) -> Floats:
        """Return the words as a vector of length 1, (E,)."""
        import torch

        with torch.no_grad():
            return unit(self._model.encode_text(self._tokenizer([words]))[0].float().numpy())

    def scores(self, features: Floats, vector: Floats) -> Floats:
        """Return the cosine of each picture's feature, projected, to a vector of words. (n, D), (E,) -> (n,)

        How long the projected features are takes nearly all of the time, so it is kept for features that come again.
        """
        key = zlib.crc32(np.ascontiguousarray(features).data), len(features)
        if (lengths := self._lengths.get(key)) is None:
            if len(self._lengths) >= BLOCKS:
                self._lengths.clear()
            lengths = np.linalg.norm(features @ self._projection, axis=1).astype(np.float32)
            self._lengths[key] = lengths
        found = features @ (self._projection @ vector) / np.maximum(lengths, np.finfo(np.float32).tiny)
        return np.asarray(found, np.float32)

    def require_same(self, embedder: Embedder) -> None:
        """Raise ``FineSightError`` unless the embedder's network is the image side of the model.

        A network that was trained since is another one: nothing has kept its features near the words.
        """
        if SPACE not in embedder.spaces:
            raise FineSightError(
                f"Words are compared with features of pooling {SPACE!r}, and this index has: "
                f"{', '.join(embedder.spaces)}. Make the run with --method frozen --set test_pooling={SPACE}."
            )
        side = self._model.visual.image_size
        side = side if isinstance(side, int) else side[0]
        if embedder.framing.resolution != side:
            raise FineSightError(
                f"The index sees pictures at {embedder.framing.resolution} pixels, and {self.name} at {side}: "
                f"make the run with --resolution {side}."
            )
        coarse = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        view = picture_view(picture, embedder.framing)
        mine = embedder.encode([view])[0].features[SPACE]
        if len(mine) != len(self._projection):
            raise FineSightError(
                f"The index was not made by the network of {self.name}: its features are wider or less."
            )
        alike = float(self.scores(mine[None], self._picture(view.pixels))[0])
        if not alike >= SAME:
            raise FineSightError(
                f"The network of the index is not the image side of {self.name}: of the same picture they make "
                f"features with a cosine of {alike:.3f}. Make the run with --method frozen and these weights."
            )
        self.fingerprint = embedder.fingerprint

    def _picture(self, pixels: Any) -> Floats:
        """Return what the model itself makes of the pixels (R, R, 3), by its own mean and deviation. -> (E,)"""
        import open_clip
        import torch

        config = open_clip.get_model_preprocess_cfg(self._model)
        mean, deviation = (np.asarray(config[key], np.float32) for key in ("mean", "std"))
        image = torch.from_numpy((pixels.astype(np.float32) / 255 - mean) / deviation).permute(2, 0, 1)
        with torch.no_grad():
            return unit(self._model.encode_image(image[None])[0].float().numpy())
