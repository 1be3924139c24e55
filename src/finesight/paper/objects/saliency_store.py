"""Saliency maps on disk: maps kept by the key of their image, and mask pictures.

Kept maps are in shards, ``.npz`` files with ``keys`` and ``maps``. A lock on the folder lets one process compute; the
others wait and then load the result.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from finesight.data.decode import IMAGE_SUFFIXES, explain_os_errors, open_light, os_reason, read_mask, to_rgb
from finesight.data.sources import SUFFIX_TEXT, ImageSource
from finesight.errors import FineSightError, SkipImage
from finesight.io.atomic import atomic_path
from finesight.io.console import console
from finesight.io.lock import locked
from finesight.io.progress import track

SHARD = 256  # maps in a shard: what a killed process loses at most
_WITHOUT_ALPHA = {"LA": "L", "PA": "P", "RGBA": "RGB"}

Compute = Callable[[NDArray[np.int64]], NDArray[np.uint8]]  # rows of the keys -> their maps
Found = tuple[NDArray[np.int64], NDArray[np.uint8]]  # rows of the keys, their maps


# --- maps that were computed --------------------------------------------------------------------------


def load_or_compute(
    folder: Path, keys: NDArray[np.bytes_], compute: Compute, side: int, progress: bool = True, shard: int = SHARD
) -> NDArray[np.uint8]:
    """Return the maps (N, side, side) of these sorted, different keys; what no shard has is computed and kept.

    Raises FineSightError if the folder cannot be used.
    """
    maps = np.zeros((len(keys), side, side), np.uint8)
    with explain_os_errors(f"the saliency cache {folder} cannot be used", "choose another folder with --cache-dir"):
        missing, _ = _load(folder, keys, maps)
        if not len(missing):
            return maps
        folder.mkdir(parents=True, exist_ok=True)
        waiting = "Another process is finding the salient objects; waiting for it"
        with locked(folder / "lock", lambda: console.print(waiting) if progress else None):
            missing, damaged = _load(folder, keys, maps)
            for file in (*damaged, *folder.glob("*.tmp*")):  # under the lock, scratch files have no living owner
                with suppress(OSError):
                    file.unlink()
            pieces = [missing[start : start + shard] for start in range(0, len(missing), shard)]
            for rows in track(pieces, len(pieces), "finding the salient objects", show=progress and bool(pieces)):
                maps[rows] = compute(rows)
                with atomic_path(folder / f"{uuid.uuid4().hex}.npz", sync=True) as scratch:
                    np.savez(scratch, keys=keys[rows], maps=maps[rows])
    return maps


def _load(folder: Path, keys: NDArray[np.bytes_], maps: NDArray[np.uint8]) -> tuple[NDArray[np.int64], list[Path]]:
    """Fill in what the shards have; return the rows they do not have and the damaged shards."""
    missing, damaged = np.ones(len(keys), bool), []
    for file in sorted(folder.glob("[!.]*.npz")):
        found = _read(file, keys, maps.shape[1:])
        if found is None:
            damaged.append(file)
            continue
        rows, theirs = found
        maps[rows] = theirs
        missing[rows] = False
    return np.flatnonzero(missing), damaged


def _read(file: Path, keys: NDArray[np.bytes_], shape: tuple[int, ...]) -> Found | None:
    """Return what a shard has of ``keys``, or None if it is damaged, which the checksums of the archive tell."""
    try:
        with np.load(file, allow_pickle=False) as shard:
            theirs = shard["keys"]
            rows = np.minimum(np.searchsorted(keys, theirs), len(keys) - 1)
            wanted = keys[rows] == theirs
            maps = shard["maps"][wanted] if wanted.any() else np.zeros((0, *shape), np.uint8)
            whole = maps.shape == (wanted.sum(), *shape) and maps.dtype == np.uint8
            return (rows[wanted], maps) if whole else None
    except OSError:  # out of reach for now
        return np.zeros(0, np.int64), np.zeros((0, *shape), np.uint8)
    except Exception:  # a broken archive raises nearly anything
        return None


# --- mask pictures ------------------------------------------------------------------------------------


def own_masks(source: ImageSource) -> list[Path]:
    """Return the mask picture of each image that the source itself names."""
    if source.masks is None:
        raise FineSightError(
            f"{source.root} has no object masks of its own (boxes are none); name a folder of masks that mirrors its "
            "images, or let the objects be detected"
        )
    files = [source.root / mask for mask in source.masks.tolist()]
    if missing := [file for file in files if not file.is_file()]:
        raise FineSightError(
            f"{source.root} lacks {len(missing):,} of its {len(files):,} object masks, the first being {missing[0]}; "
            "copy the data set again or name another folder of masks"
        )
    return files


def mirrored_masks(source: ImageSource, folder: Path) -> list[Path]:
    """Return the mask of each image: below ``folder`` at the image's path, or at that without its first folder."""
    root = Path(os.path.abspath(folder.expanduser()))
    if not root.is_dir():
        raise FineSightError(f"{root} is not a folder; name the folder that holds the masks of the images")
    listed: dict[Path, dict[str, Path]] = {}
    masks = [_mask_file(root, _below(source.root, path), listed) for path in source.paths.tolist()]
    found = [mask for mask in masks if mask is not None]
    if len(found) < len(masks):
        raise FineSightError(
            f"{root} lacks the masks of {len(masks) - len(found):,} of {len(masks):,} images, the first being that of "
            f"{source.paths[masks.index(None)]}; a mask has the path of its image, with or without its first folder, "
            f"and any suffix of {SUFFIX_TEXT}"
        )
    for i, mask in enumerate(found):
        if str(mask) == os.path.abspath(source.file(i)):
            raise FineSightError(f"{mask} is an image, not its mask; name the folder that holds the masks alone")
    return found


def _below(root: Path, path: str) -> PurePosixPath:
    """Return the path relative to ``root``, or the whole path without the leading slash if it is elsewhere."""
    whole = os.path.abspath(root / path)
    inside = os.path.relpath(whole, os.path.abspath(root))
    return PurePosixPath(whole.lstrip("/") if inside.startswith("../") else inside)


def _mask_file(folder: Path, image: PurePosixPath, listed: dict[Path, dict[str, Path]]) -> Path | None:
    for parent in (folder.joinpath(*image.parts[start:-1]) for start in range(min(2, len(image.parts)))):
        if parent not in listed:
            listed[parent] = _by_stem(parent)
        if file := listed[parent].get(image.stem):
            return file
    return None


def _by_stem(folder: Path) -> dict[str, Path]:
    """Return image files by their name without suffix; of several the last one by name (a.png rather than a.jpg)."""
    try:
        files = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise FineSightError(f"{folder} cannot be read: {os_reason(error)}; check its permissions") from error
    return {file.stem: file for file in files if file.suffix.lower() in IMAGE_SUFFIXES}


def read_binary(file: Path) -> Image.Image:
    """Return a mask of 255 wherever the picture is not zero."""
    with _usable(file):
        return Image.fromarray(read_mask(file).astype(np.uint8) * 255)


def read_alpha(file: Path) -> Image.Image:
    """Return gray values as alpha; palette indices and files of only 0 and 1 are labels, 0 is the background."""
    with _usable(file):
        with open_light(file) as opened:
            opened.load()
            opened.info.pop("transparency", None)
            image = opened.convert(_WITHOUT_ALPHA.get(opened.mode, opened.mode))
        values = np.asarray(image)
        if image.mode == "P" or (values.dtype.kind != "f" and values.max() <= 1):
            return read_binary(file)
        return to_rgb(image).convert("L")


@contextmanager
def _usable(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Pillow's parsers raise nearly anything on bad bytes
        reason = str(error) if isinstance(error, SkipImage) else "damaged image"
        if isinstance(error, OSError) and error.errno is not None:
            reason = os_reason(error)
        raise FineSightError(f"the object mask {file} cannot be used: {reason}; replace it") from error
