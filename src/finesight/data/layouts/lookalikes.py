"""Look-alikes: drawn birds that differ in small parts, on backgrounds that have nothing to do with the species.

Every species has the same shape and the same range of plumage and pose; species differ only in crown, bill, eye ring,
wing bars and tail. Backgrounds are drawn without regard to the species, change from image to image, and carry leaves
and berries in the colors of the parts, so an objective that only tells *images* apart is tempted by them. All of it
follows from the seed. Object masks and part positions are kept for measuring attention.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from finesight.data.drawing import PART_NAMES, draw, make_species
from finesight.data.layouts.layout import DatasetLayout, DirectoryTree, register_layout
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError
from finesight.io.atomic import atomic_path
from finesight.io.parallel import bounded_map

MANIFEST = "lookalikes.json"
SPLITS = ("train", "test")


class LookalikesConfig(BaseModel):
    """How many images of how many species are drawn, how large, and with which seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    species: int = Field(100, ge=2, le=200)
    train_per_species: int = Field(12, ge=1)
    test_per_species: int = Field(10, ge=1)
    size: int = Field(96, ge=32, le=1024)
    seed: int = 0


@register_layout
class Lookalikes(DatasetLayout):
    name = "lookalikes"
    title = "a folder of drawn look-alikes"
    trees = (DirectoryTree("lookalikes", ((MANIFEST, "written by `finesight lookalikes`"),)),)
    annotations = "masks and 5 parts"
    order = 60
    listed = False  # there is nothing to get

    def open(self, root: Path) -> ImageSource:
        """Return the drawn images with labels, splits, masks and parts."""
        try:
            manifest = json.loads((root / MANIFEST).read_text())
            images = manifest["images"]
            paths = np.array([image["path"] for image in images])
            parts = np.array([image["parts"] for image in images], dtype=np.float32)
        except (OSError, ValueError, KeyError) as error:
            raise FineSightError(f"{root / MANIFEST} cannot be read ({error}): draw the look-alikes again.") from error
        folders = np.array([path.split("/")[1] for path in paths])
        classes, labels = np.unique(folders, return_inverse=True)
        return ImageSource(
            root=root,
            kind=self.name,
            paths=paths,
            labels=labels.astype(np.int64),
            classes=tuple(str(c) for c in classes),
            splits=np.array([path.split("/")[0] for path in paths]),
            parts=parts,
            part_names=tuple(manifest["part_names"]),
            masks=np.array([f"masks/{path}" for path in paths]),
        )


def make_lookalikes(root: Path, config: LookalikesConfig | None = None) -> ImageSource:
    """Draw the dataset into ``root``, or open what the same configuration drew there; refuse any other content."""
    config = config or LookalikesConfig()
    if (root / MANIFEST).exists():
        if json.loads((root / MANIFEST).read_text())["config"] != config.model_dump():
            raise FineSightError(
                f"{root} holds look-alikes drawn with other settings: give another folder or remove it."
            )
    elif root.exists() and any(root.iterdir()):
        raise FineSightError(f"{root} is not empty: give a new folder to draw the look-alikes into.")
    else:
        with atomic_path(root.absolute()) as scratch:
            _draw_all(scratch, config)
    return Lookalikes().open(root)


def _draw_all(root: Path, config: LookalikesConfig) -> None:
    species = make_species(config.species, config.seed)
    counts = {"train": config.train_per_species, "test": config.test_per_species}
    jobs = [(split, s, i) for split in SPLITS for s in range(config.species) for i in range(counts[split])]
    for split, s in {(split, s) for split, s, _ in jobs}:
        (root / split / _name(s)).mkdir(parents=True)
        (root / "masks" / split / _name(s)).mkdir(parents=True)

    def work(job: tuple[str, int, int]) -> dict[str, object]:
        split, s, i = job
        drawing = draw(species[s], config.size, np.random.default_rng([config.seed, SPLITS.index(split), s, i]))
        relative = f"{split}/{_name(s)}/{i:04d}.png"
        drawing.image.save(root / relative, compress_level=1)
        drawing.mask.save(root / "masks" / relative, compress_level=1)
        return {"path": relative, "habitat": drawing.habitat, "parts": drawing.parts.round(2).tolist()}

    images = [image for _, image in bounded_map(work, jobs)]
    manifest = {"config": config.model_dump(), "part_names": PART_NAMES, "images": images}
    (root / MANIFEST).write_text(json.dumps(manifest))


def _name(species: int) -> str:
    return f"species-{species:03d}"


def habitats(source: ImageSource) -> NDArray[np.int64]:
    """Return the habitat behind each bird, by which one can measure how much a feature is about the background."""
    images = json.loads((source.root / MANIFEST).read_text())["images"]
    known = {image["path"]: image["habitat"] for image in images}
    return np.array([known[path] for path in source.paths.tolist()], dtype=np.int64)
