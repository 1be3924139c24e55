"""Sources whose images are not files of a folder: behind an address, in tar files (WebDataset) or in Parquet files."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finesight.data.decode import UnreachableFile
from finesight.data.listing import Listing, is_hidden, not_an_image_suffix
from finesight.data.lists import ListedImages, read_list
from finesight.data.places import (
    PARQUET,
    TAR,
    address,
    as_path,
    filesystem,
    image_column,
    open_container,
    reached,
    read_place,
    remember,
    stamp,
    tar_members,
)
from finesight.errors import FineSightError

CONTAINERS = (TAR, PARQUET)
LISTS = (".txt", ".csv", ".tsv", ".lst")
_LABELS = ("label", "labels", "class", "cls", "fine_label")


@dataclass
class Found:
    """What lies at an address, or in a folder of containers: exactly one of these."""

    root: Path
    files: Listing | None = None  # images of their own
    containers: list[str] = field(default_factory=list)  # full names of tar and Parquet files
    list_file: ListedImages | None = None


def find_remote(data: str) -> Found:
    """List what an address holds; raise ``FineSightError`` if it cannot be reached or holds nothing."""
    url = address(data).rstrip("/")
    try:
        if url.endswith(LISTS):
            return Found(as_path(url.rpartition("/")[0]), list_file=_read_list(url))
        with reached(url):
            names = _names(url)
    except UnreachableFile as error:
        raise FineSightError(f"{url} cannot be read: {error}; check the address and your access to it") from None
    containers = [name for name in names if name.endswith(CONTAINERS)]
    single = "*" in url or url.endswith(CONTAINERS)
    base = re.split(r"[*?\[{]", url)[0].rpartition("/")[0] if single else url
    if containers:
        return Found(as_path(base), containers=[str(as_path(name)) for name in containers])
    listing = Listing()
    for name in names:
        path = name.removeprefix(f"{base}/")
        if is_hidden(os.path.basename(path)):
            continue
        if reason := not_an_image_suffix(path):
            listing.skipped.append((path, reason))
        else:
            listing.images.append(path)
            folder = os.path.dirname(path)
            listing.counts[folder] = listing.counts.get(folder, 0) + 1
    listing.counts = dict(sorted(listing.counts.items()))
    listing.images.sort()
    return Found(as_path(base), listing)


def _names(url: str) -> list[str]:
    """Return the addresses of all files below one, of one, or of those that a pattern with * names."""
    system, path = filesystem(url)
    scheme = url.partition(":")[0]
    system.invalidate_cache()  # it may have changed since this process looked last
    if url.endswith(CONTAINERS) and "*" not in url:
        remember(url, system.info(path))
        return [url]
    found: dict[str, Any] = system.glob(path, detail=True) if "*" in url else system.find(path, detail=True)
    names = []
    for name, info in sorted(found.items()):
        if info.get("type", "file") == "file":
            full = name if "://" in name else f"{scheme}://{name}"
            if info.get("size") is not None:
                remember(full, info)
            names.append(full)
    return names


def _read_list(url: str) -> ListedImages:
    content = read_place(url)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / url.rpartition("/")[2]
        file.write_bytes(content)
        return read_list(file)


def find_containers(path: Path) -> Found | None:
    """Return the tar or Parquet files of a folder that has no images of its own, or the one that ``path`` is."""
    if path.is_file():
        return Found(path.parent, containers=[str(path)]) if path.name.endswith(CONTAINERS) else None
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        if any(not not_an_image_suffix(name) for name in names):
            return None
        found += [os.path.join(folder, name) for name in names if name.endswith(CONTAINERS)]
    return Found(path, containers=sorted(found)) if found else None


def list_containers(root: Path, containers: Sequence[str]) -> ListedImages:
    """Return the images in tar and Parquet files, with the labels that they have.

    Splits are told by the names of the files, as train-000.tar and test-000.tar.
    """
    listed = ListedImages()
    splits = [_split(os.path.relpath(name, root)) for name in containers]
    told = "train" in splits and "test" in splits
    for name, split in zip(containers, splits, strict=True):
        if told and not split:
            listed.skipped.append((os.path.relpath(name, root), "its name tells neither train nor test"))
            continue
        try:
            found = _of_parquet(name) if name.endswith(PARQUET) else _of_tar(name)
        except UnreachableFile as error:
            listed.skipped.append((os.path.relpath(name, root), str(error)))
            continue
        prefix = os.path.relpath(name, root)
        listed.paths += [f"{prefix}::{member}" for member, _ in found]
        listed.labels += [label for _, label in found]
        listed.splits += [split] * len(found) if told else []
    if not listed.paths:
        why = f": {listed.skipped[0][1]}" if listed.skipped else ""
        raise FineSightError(f"there are no images in the tar or Parquet files of {address(root)}{why}")
    return listed


def _split(name: str) -> str:
    words = re.split(r"[^a-z]+", name.lower())
    if "train" in words or "training" in words:
        return "train"
    return "test" if {"test", "val", "validation"} & set(words) else ""


def _of_tar(container: str) -> list[tuple[str, str]]:
    """Return name and label of the images; a label is a member of the same name that ends in .cls."""
    members = tar_members(container)
    labels: dict[str, str] = {}
    with open_container(container) as file:
        for name, (start, size) in members.items():
            if name.endswith(".cls"):
                file.seek(start)
                labels[name.removesuffix(".cls")] = file.read(size).decode("utf-8", "replace").strip()
    return [(name, labels.get(_key(name), "")) for name in members if not not_an_image_suffix(name)]


def _key(name: str) -> str:
    """Return what the members of a sample share: WebDataset cuts names at the first dot of their last part."""
    folder, _, last = name.rpartition("/")
    stem = last.partition(".")[0]
    return f"{folder}/{stem}" if folder else stem


def _of_parquet(container: str) -> list[tuple[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    size, _ = stamp(container)
    with reached(container):
        try:
            with open_container(container) as stream, pq.ParquetFile(stream) as file:
                schema = file.schema_arrow
                if image_column(schema) is None:
                    raise UnreachableFile("no column with the bytes of images")
                name = next((name for name in _LABELS if name in schema.names), None)
                if file.metadata.num_rows > size:
                    raise UnreachableFile("a damaged Parquet file (it says it has more rows than bytes)")
                labels = [""] * file.metadata.num_rows
                if name is not None:
                    names = _class_names(schema, name)
                    given = file.read(columns=[name]).column(0).to_pylist()
                    labels = ["" if v is None else names[v] if names and 0 <= v < len(names) else str(v) for v in given]
        except pa.ArrowException as error:
            raise UnreachableFile(f"a damaged Parquet file ({error})") from None
    return [(str(row), label) for row, label in enumerate(labels)]


def _class_names(schema: Any, column: str) -> list[str]:
    """Return the names of classes that are stored as numbers, as Hugging Face keeps them."""
    try:
        about = json.loads(schema.metadata[b"huggingface"])["info"]["features"][column]
        return [str(name) for name in about.get("names", [])]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
