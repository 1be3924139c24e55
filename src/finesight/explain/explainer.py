"""Show where a network looks: an object that is called with images and gives heat maps to lay over them."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from finesight.errors import FineSightError
from finesight.explain.contributions import Similarity, similarity, winners
from finesight.explain.notebook import explanation_html
from finesight.explain.objective_cam import NoGradCAM, ObjectiveCam, Rectify
from finesight.features.encoder import Encoder, ImageLike, pixels
from finesight.features.preprocess import Picture
from finesight.features.types import Box
from finesight.io.atomic import write_atomic
from finesight.nn.backbone import joined
from finesight.nn.poolings import ATTENTION
from finesight.plots.tiles import blend, value_range
from finesight.training.run_folder import RunFolder

Floats = NDArray[np.float32]
MAPS = ("mask", "energy", "attention", "gradcam")
LONGEST = 100  # bytes of a file's name: with what is added it must fit in a file system's 255


class SafeNames:
    """File names that any system takes, made of any names; never two that differ by case alone."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def add(self, name: str) -> str:
        """Return a free file name; letters and digits of any script, dots, dashes and underscores stay."""
        plain = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
        kept = "".join(c if c.isalnum() or c in "._-" else "_" for c in plain).strip("._-") or "image"
        kept = kept.encode()[:LONGEST].decode("utf-8", "ignore")
        free, number = kept, 1
        while free.casefold() in self._taken:
            number += 1
            free = f"{kept}-{number}"
        self._taken.add(free.casefold())
        return free


def make_folder(folder: Path) -> None:
    """Make an output folder; a ``FineSightError`` says why it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FineSightError(f"--out {folder} cannot be made a folder: {error.strerror}.") from error


def write_file(path: Path, data: bytes) -> None:
    """Write a file of the output; a ``FineSightError`` says why it cannot be written."""
    make_folder(path.parent)
    try:
        write_atomic(path, data)
    except OSError as error:
        raise FineSightError(f"{path} cannot be written: {error.strerror}. Free space, or give another -o.") from error


@dataclass(frozen=True)
class Explanation:
    """The maps of N images, on the network's grid of H × W cells over the view. In a notebook it shows itself."""

    names: list[str]
    pixels: NDArray[np.uint8]  # (N, R, R, 3) the view the network sees
    mask: Floats  # (N, H, W) in [0, 1]: what features are pooled by; the energy where there is no rationale
    energy: Floats  # (N, H, W) in [0, 1]: channel energy, the control
    gradcam: Floats | None = None  # (N, H, W), not negative: of the loss the run was trained with
    responses: Floats | None = None  # (N, K, H, W) of the projections
    winners: NDArray[np.int64] | None = None  # (N, H, W) which projection is the mask's maximum there
    attention: Floats | None = None  # (N, H, W) in [0, 1]: what the class token of a ViT attends to in its last block

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def variances(self) -> Floats | None:
        """(N, K): how much each projection's response varies over each image; those that vary most say most."""
        return None if self.responses is None else self.responses.var(axis=(2, 3))

    def heat(self, i: int, of: str | int = "mask") -> Floats:
        """Return a map (H, W) of image i, named as in ``MAPS``, or the response of a projection by its number."""
        if isinstance(of, int):
            if self.responses is None or not 0 <= of < self.responses.shape[1]:
                count = 0 if self.responses is None else self.responses.shape[1]
                raise FineSightError(f"There is no projection {of}: this encoder has {count}.")
            return np.asarray(self.responses[i, of])
        if of not in MAPS:
            raise FineSightError(f"There is no map {of!r}: give {', '.join(MAPS)} or the number of a projection.")
        maps: Floats | None = getattr(self, of)
        if maps is None and of == "attention":
            raise FineSightError("There is no attention: this network has no class token whose attention can be had.")
        if maps is None:
            raise FineSightError("There is no GradCAM: the explainer's no_gradcam says why.")
        return np.asarray(maps[i])

    def overlay(self, i: int, of: str | int = "mask", *, side: int | None = None) -> NDArray[np.uint8]:
        """Return the map over image i, from its own lowest value to its highest: (R, R, 3), or (side, side, 3).

        A map that is the same everywhere says nothing about where: the image is then left as it is.
        """
        picture, heat = self.pixels[i], self.heat(i, of)
        if side is not None:
            picture = np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC))
        bounds = value_range(heat)
        return picture if bounds is None else blend(picture, (heat - bounds[0]) / (bounds[1] - bounds[0]))

    def top(self, i: int, count: int = 3) -> list[int]:
        """Return the projections that vary most over image i."""
        if self.variances is None:
            return []
        return [int(k) for k in np.argsort(-self.variances[i], kind="stable")[:count]]

    def save(
        self, folder: str | Path, *, projections: int = 3, side: int | None = None, names: SafeNames | None = None
    ) -> list[list[str]]:
        """Write PNG overlays, ``NAME-mask.png`` and so on; return the files' names, image by image."""
        folder, names = Path(folder), names or SafeNames()
        maps = [name for name in MAPS if getattr(self, name) is not None]
        if self.responses is None:
            maps.remove("mask")  # it is the energy
        return [self._save(folder, i, [*maps, *self.top(i, projections)], side, names) for i in range(len(self))]

    def _save(self, folder: Path, i: int, maps: list[Any], side: int | None, names: SafeNames) -> list[str]:
        stem = names.add(self.names[i])
        files = [f"{stem}-projection-{of}.png" if isinstance(of, int) else f"{stem}-{of}.png" for of in maps]
        for of, file in zip(maps, files, strict=True):
            png = io.BytesIO()
            Image.fromarray(self.overlay(i, of, side=side)).save(png, "PNG")
            write_file(folder / file, png.getvalue())
        return files

    def row(self, i: int) -> Explanation:
        """Return the explanation of image i alone."""
        held: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value[i : i + 1]
            for name in ("pixels", "mask", "energy", "gradcam", "responses", "winners", "attention")
        }
        return replace(self, names=[self.names[i]], **held)

    def _repr_html_(self) -> str:
        return explanation_html(self)


class Explainer:
    """Show where a network looks and why two images are alike.

    Call it with images. Given the run as well, it knows the loss, and shows its GradCAM too.

    Examples:
        >>> explainer = finesight.Explainer.load("runs/birds")
        >>> explanation = explainer(["one.jpg", "two.jpg"])
        >>> explanation.overlay(0, "mask")  # (R, R, 3) uint8
        >>> explanation.save("why")
        >>> explainer.match("one.jpg", "two.jpg")  # which places made their score
    """

    def __init__(
        self, encoder: Encoder, run: RunFolder | str | Path | None = None, *, rectify: Rectify = "abs"
    ) -> None:
        self.encoder, self.rectify = encoder, rectify
        self.cam: ObjectiveCam | None = None
        self.no_gradcam = "The explainer was not given the run: only that has the loss."  # in words; "" if there is one
        if run is not None:
            try:
                self.cam = ObjectiveCam(run if isinstance(run, RunFolder) else RunFolder(Path(run)), encoder)
                self.no_gradcam = ""
            except NoGradCAM as reason:
                self.no_gradcam = str(reason)

    @classmethod
    def load(cls, run: str | Path, *, rectify: Rectify = "abs", exact: bool = False) -> Self:
        """Load from the folder of a finished run, or of an encoder alone."""
        return cls(Encoder.load(run, exact=exact), run, rectify=rectify)

    def __call__(
        self, images: ImageLike | Tensor | Sequence[ImageLike], names: Sequence[str] | None = None
    ) -> Explanation:
        """Explain paths, PIL images, or normalized views (N, 3, R, R).

        Where the loss is one over the batch (SimCLR, Barlow Twins, VICReg), these images are its batch.
        """
        views = self.encoder.prepare(images)
        gradcam = self._gradcam(views)
        encoder, branch = self.encoder, self.encoder.branch
        size = encoder.batch_size(views.shape[2] * views.shape[3]) if encoder.device.type == "cpu" else len(views)
        with torch.no_grad():
            parts = [encoder.runner.outputs(part, attention=True) for part in torch.split(views, size)]
            made = encoder.pooler.limited(joined(parts))
            output = encoder.pool(made, ())
            responses = None if branch is None else branch.responses(made.phi)
            winning = None if branch is None or responses is None else winners(branch, responses)
        return Explanation(
            list(names) if names is not None else _names(images, len(views)),
            np.stack([pixels(encoder, view.cpu()) for view in views]),
            output.attention.float().cpu().numpy(),
            output.masks["energy"].float().cpu().numpy(),
            None if gradcam is None else gradcam.float().numpy(),
            None if responses is None else responses.float().cpu().numpy(),
            None if winning is None else winning.cpu().numpy(),
            output.masks[ATTENTION].float().cpu().numpy() if ATTENTION in output.masks else None,
        )

    def match(self, query: Picture, hit: Picture, by: str | None = None, region: Box | None = None) -> Similarity:
        """Return what made the score of two pictures, by cells and by projections; in a notebook it shows itself.

        ``by`` is the pooling, by default the encoder's own. ``region`` narrows the query to a box: x, y, width, height
        as shares of the picture. Raises ``FineSightError`` if a picture cannot be read.
        """
        return similarity(self.encoder, query, hit, by, region)

    def _gradcam(self, views: Tensor) -> Tensor | None:
        if self.cam is None:
            return None
        self.no_gradcam = ""
        try:
            return self.cam(views, self.rectify)
        except NoGradCAM as reason:  # one image, and a loss that needs two
            self.no_gradcam = str(reason)
            return None


def _names(images: ImageLike | Tensor | Sequence[ImageLike], count: int) -> list[str]:
    """Return the names of files, and numbers for other images."""
    listed = [images] if isinstance(images, (str, Path)) else list(images) if isinstance(images, Sequence) else []
    return [
        Path(image).stem if i < len(listed) and isinstance(image := listed[i], (str, Path)) else f"image-{i + 1}"
        for i in range(count)
    ]
