"""The embedded default: drawn birds that look alike, on backgrounds that do not.

Every species has the same shape, plumage range and pose range; species differ only in small parts (crown, bill, eye
ring, wing bars, tail). Backgrounds are drawn without looking at the species and change from image to image, and they
carry leaves and berries in the colors of the parts, so an objective that merely tells *images* apart is tempted by
them. Everything is a function of the seed. Object masks and part positions are kept for measuring attention.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from finesight.data.layouts.drawing import PART_NAMES, draw, make_species
from finesight.data.sources import ImageSource
from finesight.errors import FineSightError

MANIFEST = "lookalikes.json"
SPLITS = ("train", "test")


class LookalikesConfig(BaseModel):
    """How many, how large, which seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    species: int = Field(100, ge=2, le=200)
    train_per_species: int = Field(12, ge=1)
    test_per_species: int = Field(10, ge=1)
    size: int = Field(96, ge=32, le=1024)
    seed: int = 0


def make_lookalikes(root: Path, config: LookalikesConfig | None = None) -> ImageSource:
    """Draw the data set into ``root`` (or re-use what the same configuration drew there before)."""
    config = config or LookalikesConfig()
    if (root / MANIFEST).exists():
        if json.loads((root / MANIFEST).read_text())["config"] == config.model_dump():
            return open_lookalikes(root)
        raise FineSightError(f"{root} holds look-alikes drawn with other settings: give another folder or remove it.")
    if root.exists() and any(root.iterdir()):
        raise FineSightError(f"{root} is not empty: give a new folder to draw the look-alikes into.")
    root.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    scratch.chmod(0o755)  # a temporary folder is its owner's alone
    try:
        _draw_all(scratch, config)
        if root.exists():
            root.rmdir()
        os.replace(scratch, root)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return open_lookalikes(root)


def _draw_all(root: Path, config: LookalikesConfig) -> None:
    kinds = make_species(config.species, config.seed)
    counts = {"train": config.train_per_species, "test": config.test_per_species}
    jobs = [(split, s, i) for split in SPLITS for s in range(config.species) for i in range(counts[split])]
    for split, s in {(split, s) for split, s, _ in jobs}:
        (root / split / _name(s)).mkdir(parents=True)
        (root / "masks" / split / _name(s)).mkdir(parents=True)

    def work(job: tuple[str, int, int]) -> dict[str, object]:
        split, s, i = job
        drawing = draw(kinds[s], config.size, np.random.default_rng([config.seed, SPLITS.index(split), s, i]))
        relative = f"{split}/{_name(s)}/{i:04d}.png"
        drawing.image.save(root / relative, compress_level=1)
        drawing.mask.save(root / "masks" / relative, compress_level=1)
        return {"path": relative, "habitat": drawing.habitat, "parts": drawing.parts.round(2).tolist()}

    with ThreadPoolExecutor() as pool:
        images = list(pool.map(work, jobs))
    manifest = {"config": config.model_dump(), "part_names": PART_NAMES, "images": images}
    (root / MANIFEST).write_text(json.dumps(manifest))


def _name(species: int) -> str:
    return f"species-{species:03d}"


def habitats(source: ImageSource) -> NDArray[np.int64]:
    """Which habitat is behind each bird: how much a feature is about the background can be measured by it."""
    images = json.loads((source.root / MANIFEST).read_text())["images"]
    known = {image["path"]: image["habitat"] for image in images}
    return np.array([known[path] for path in source.paths.tolist()], dtype=np.int64)


def is_lookalikes(root: Path) -> bool:
    return (root / MANIFEST).is_file()


def open_lookalikes(root: Path) -> ImageSource:
    """The drawn folder as an ImageSource with labels, splits, masks and parts."""
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
        kind="lookalikes",
        paths=paths,
        labels=labels.astype(np.int64),
        classes=tuple(str(c) for c in classes),
        splits=np.array([path.split("/")[0] for path in paths]),
        parts=parts,
        part_names=tuple(manifest["part_names"]),
        masks=np.array([f"masks/{path}" for path in paths]),
    )
