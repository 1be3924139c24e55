"""An index in an object store: fetched to the cache folder, searched and changed there, and sent back when closed.

    NAME/manifest.json       which version holds, and size and checksum of each of its files
    NAME/VERSION/…           the files of an index folder

The manifest is written last, so a reader sees the former index or the new one. Files whose checksum is known here
are not fetched again; one that does not have its checksum after it was fetched is refused. A writer that finds another
version than the one it fetched sends nothing, so no writer undoes what another one did.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from finesight.data.decode import UnreachableFile
from finesight.data.places import filesystem, reached
from finesight.data.store import default_cache_dir
from finesight.errors import FineSightError
from finesight.io.atomic import atomic_path
from finesight.search.base import Ids, Index, IndexMeta, NewItems
from finesight.search.faiss_index import FaissIndex
from finesight.search.index_folder import LOCK, META

MANIFEST = "manifest.json"
VERSION = "[0-9a-f]{32}"
CHUNK = 1 << 20


def _inside(name: str) -> str:
    """Return the name of a file if it is one below the folder of an index. A manifest may be a stranger's."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or not name.isprintable():
        raise ValueError(f"it names a file outside of the index: {name!r}")
    return name


class FileFacts(BaseModel):
    """Size and checksum of a file."""

    bytes: int = Field(ge=0)
    blake2b: str

    @classmethod
    def of(cls, file: Path) -> Self:
        return cls(bytes=file.stat().st_size, blake2b=_checksum(file))


class RemoteManifest(BaseModel):
    """Which version of an index holds, and its files by name."""

    version: str = Field(pattern=f"^{VERSION}$")
    files: dict[Annotated[str, AfterValidator(_inside)], FileFacts]


class RemoteIndex(FaissIndex):
    """The copy of an index here. ``close`` sends it back if it was changed."""

    _uri = ""
    _version = ""  # that was fetched; of a new index none
    _changed = False

    @classmethod
    def open(cls, where: str | Path) -> Self:
        folder = _copy_of(str(where))
        version = _fetch(str(where), folder)
        index = cls(folder)
        index._uri, index._version = str(where), version
        return index

    @classmethod
    def exists(cls, where: str | Path) -> bool:
        return _manifest(str(where)) is not None

    @classmethod
    def create(cls, where: str | Path, meta: IndexMeta, encoder: Path) -> Self:
        folder = _copy_of(str(where))
        shutil.rmtree(folder, ignore_errors=True)  # of an index that is no longer there
        index = super().create(folder, meta, encoder)
        index._uri, index._changed = str(where), True
        return index

    def add(self, batch: NewItems) -> None:
        self._changed = True
        super().add(batch)

    def remove(self, ids: Ids) -> None:
        self._changed = True
        super().remove(ids)

    def finish(self) -> None:
        before = _structures(self.folder)
        super().finish()
        self._changed |= before != _structures(self.folder)

    def notes_file(self) -> Path:
        """Return a file outside of the copy, which is replaced by another version."""
        return Index.notes_file(self)

    def close(self) -> None:
        super().close()
        if self._changed:
            self._version = _send(self._uri, self.folder, self._version)
            self._changed = False


def _copy_of(uri: str) -> Path:
    name = hashlib.blake2b(uri.rstrip("/").encode(), digest_size=8).hexdigest()
    return default_cache_dir() / "indexes" / name


def _structures(folder: Path) -> set[tuple[str, int]]:
    return {(file.name, file.stat().st_mtime_ns) for file in folder.glob("*.faiss")}


def _manifest(uri: str) -> RemoteManifest | None:
    try:
        with reached(uri):
            return _read_manifest(uri)[0]
    except UnreachableFile as error:
        raise FineSightError(f"The index {uri} cannot be reached: {error}.") from None


def _read_manifest(uri: str) -> tuple[RemoteManifest | None, str]:
    """Return the manifest and its ETag, where the store has one.

    Raises what the store raises, and ``FineSightError`` if what is there is no manifest.
    """
    system, path = filesystem(uri.rstrip("/"))
    system.invalidate_cache()
    if not system.exists(f"{path}/{MANIFEST}"):
        return None, ""
    etag = system.info(f"{path}/{MANIFEST}").get("ETag") or ""
    try:
        return RemoteManifest.model_validate_json(system.cat_file(f"{path}/{MANIFEST}")), etag
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise FineSightError(f"{uri.rstrip('/')}/{MANIFEST} is damaged, or not of an index: {reason}.") from None


def _checksum(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of an index, without locks and what is being written."""
    found = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
    return {name: file for name, file in found.items() if name != LOCK and not file.name.startswith(".")}


def _fetch(uri: str, folder: Path) -> str:
    """Make ``folder`` what the manifest says, and return its version.

    Raises ``FineSightError`` if a file is not what it should be.
    """
    manifest = _manifest(uri)
    if manifest is None:
        raise FineSightError(f"There is no index at {uri}. Make one with `finesight index`.")
    here = _files(folder) if folder.is_dir() else {}
    wanted, version = manifest.files, manifest.version
    kept = {name for name, file in here.items() if name in wanted and _checksum(file) == wanted[name].blake2b}
    if kept == wanted.keys() == here.keys():
        return version
    system, path = filesystem(uri.rstrip("/"))
    with atomic_path(folder, replace_folder=True) as scratch:
        for name, facts in sorted(wanted.items(), key=lambda item: item[0] == META):
            target = scratch / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if name in kept:
                shutil.copy2(here[name], target)
                continue
            try:
                with reached(uri):
                    system.get_file(f"{path}/{version}/{name}", str(target))
            except UnreachableFile as error:
                raise FineSightError(f"{name} of the index {uri} cannot be fetched: {error}.") from None
            if _checksum(target) != facts.blake2b:
                raise FineSightError(f"{name} of the index {uri} is damaged: its checksum is another. Build it again.")
    return version


def _send(uri: str, folder: Path, fetched: str) -> str:
    """Send the index unless another writer sent one since ``fetched``; return the new version."""
    system, path = filesystem(uri.rstrip("/"))
    version, files = uuid.uuid4().hex, _files(folder)
    try:
        with reached(uri):
            for name, file in files.items():
                system.put_file(str(file), f"{path}/{version}/{name}")
            facts = {name: FileFacts.of(file) for name, file in files.items()}
            content = RemoteManifest(version=version, files=facts).model_dump_json().encode()
            others = _versions(uri) - {version}
            if not _replace_manifest(uri, content, fetched):
                _remove(uri, version)
                raise FineSightError(
                    f"Another process changed the index {uri} meanwhile, so nothing was sent to it. "
                    "Run the command again: it begins with the index as it is now."
                )
            for other in others:  # the former one, and those of writers that were killed or come too late now
                _remove(uri, other)
    except (UnreachableFile, NotImplementedError) as error:
        raise FineSightError(
            f"The index was not sent to {uri}: {error or 'it cannot be written to'}. It is whole in {folder}."
        ) from None
    return version


def _versions(uri: str) -> set[str]:
    """Return the versions that are there, also by half."""
    system, path = filesystem(uri.rstrip("/"))
    system.invalidate_cache()
    names = {str(name).rstrip("/").rpartition("/")[2] for name in system.ls(path, detail=False)}
    return {name for name in names if re.fullmatch(VERSION, name)}


def _remove(uri: str, version: str) -> None:
    system, path = filesystem(uri.rstrip("/"))
    with suppress(FileNotFoundError):  # another writer removes it, too
        system.rm(f"{path}/{version}", recursive=True)


def _replace_manifest(uri: str, content: bytes, fetched: str) -> bool:
    """Write the manifest if it is still the one that was fetched; return whether it was.

    S3 looks and writes as one step. Elsewhere another writer could come between the two.
    """
    system, path = filesystem(uri.rstrip("/"))
    now, etag = _read_manifest(uri)
    if ("" if now is None else now.version) != fetched:
        return False
    file = f"{path}/{MANIFEST}"
    condition = ({"IfMatch": etag} if etag else {"IfNoneMatch": "*"}) if uri.startswith("s3:") else {}
    try:
        system.pipe_file(file, content, **condition)
    except OSError as error:
        words = f"{error!r}{error.__cause__!r}"
        if any(code in words for code in ("PreconditionFailed", "ConditionalRequestConflict")):
            return False
        if "NotImplemented" not in words:  # some stores that speak S3 know no conditions
            raise
        system.pipe_file(file, content)
    return True
