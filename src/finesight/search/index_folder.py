"""The folder an index is kept in: what makes it one, who may write to it, and files that are whole or not there."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from finesight.data.decode import explain_os_errors
from finesight.errors import FineSightError
from finesight.search.base import IndexMeta
from finesight.search.item_store import Catalog

META, ITEMS, ENCODER, LOCK = "index.json", "items.db", "encoder", "lock"
FORMAT = 1


def make_folder(folder: Path, meta: IndexMeta, encoder: Path) -> None:
    """An empty index with a copy of its encoder; ``index.json``, written last, makes it one."""
    _refuse_foreign(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with only_writer(folder):
            if (folder / META).exists():
                raise FineSightError(f"There is an index in {folder} already.")
            for name in (ENCODER, f".{ENCODER}.tmp"):
                shutil.rmtree(folder / name, ignore_errors=True)  # of a process that was killed
            shutil.copytree(encoder, folder / f".{ENCODER}.tmp")
            os.rename(folder / f".{ENCODER}.tmp", folder / ENCODER)
            (folder / ITEMS).unlink(missing_ok=True)
            Catalog(folder / ITEMS, create=True).close()
            _write_whole(folder / META, meta.model_dump_json(indent=2) + "\n")


def read_meta(folder: Path) -> IndexMeta:
    try:
        meta = IndexMeta.model_validate_json((folder / META).read_text())
    except FileNotFoundError:
        raise FineSightError(f"There is no index in {folder}. Make one with `finesight index`.") from None
    except (OSError, ValueError, ValidationError) as error:
        raise FineSightError(f"The index in {folder} is damaged or of another version: {error}") from error
    if meta.format != FORMAT:
        raise FineSightError(f"The index in {folder} has format {meta.format}; this version reads {FORMAT}.")
    return meta


def only_writer(folder: Path) -> IO[bytes]:
    """A lock to be closed. The kernel lets go of it when its owner dies, however it dies."""
    handle = open(folder / LOCK, "ab")  # noqa: SIM115 - held for as long as is written
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise FineSightError(f"Another process is writing to the index {folder}: wait for it to end.") from None
    return handle


def sync(file: IO[bytes]) -> None:
    """Before a commit or a rename: after a power cut neither may stand for unwritten data."""
    file.flush()
    os.fsync(file.fileno())


def writing(folder: Path) -> AbstractContextManager[None]:
    return explain_os_errors(f"The index {folder} cannot be written", "make room, or give --index another folder")


def _refuse_foreign(folder: Path) -> None:
    """Nothing of another program's is mixed with an index."""
    ours = {ENCODER, f".{ENCODER}.tmp", ITEMS, f"{ITEMS}-journal", LOCK, META, f".{META}.tmp"}
    if folder.exists() and not folder.is_dir():
        raise FineSightError(f"{folder} is a file: --index must be a folder.")
    if folder.exists() and not {path.name for path in folder.iterdir()} <= ours:
        raise FineSightError(f"{folder} is not empty and holds no index: give --index a new folder.")


def _write_whole(file: Path, text: str) -> None:
    scratch = file.with_name(f".{file.name}.tmp")
    with open(scratch, "wb") as stream:
        stream.write(text.encode())
        sync(stream)
    os.replace(scratch, file)
