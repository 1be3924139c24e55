"""Send images as one ZIP file, written while it is sent: no more than one image of it is in memory."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator, Sequence
from pathlib import PurePosixPath

from fastapi import HTTPException, Request

from finesight.server.images import IMAGE_SIDE
from finesight.server.service import SearchService

MISSING = "missing.txt"


class _Pipe(io.RawIOBase):
    """A stream that cannot be rewound: ``take`` returns what was written since it was called last."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data


async def stream_zip(request: Request, service: SearchService, ids: Sequence[str]) -> AsyncIterator[bytes]:
    """Yield the ZIP file piece by piece. What cannot be drawn is named in a text file at its end."""
    pipe, missing, used = _Pipe(), list[str](), set[str]()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as archive:
        for name in dict.fromkeys(ids):
            try:
                path, data = await service.drawing.run(request, lambda name=name: _draw(service, name))  # type: ignore[misc]
            except HTTPException as error:
                missing.append(f"{name}: {error.detail}")
                continue
            archive.writestr(_free_name(path, used), data)
            yield pipe.take()
        if missing:
            archive.writestr(MISSING, "\n".join(missing) + "\n")
    yield pipe.take()


def _draw(service: SearchService, name: str) -> tuple[str, bytes]:
    index = service.features.get().index
    image = service.images.find(name, index)
    _, data = service.images.draw(image, IMAGE_SIDE)
    assert image.item is not None
    assert data is not None
    return image.item.path, data


def _free_name(path: str, used: set[str]) -> str:
    """Return a name for the archive that stays inside it and is not taken yet; what is sent is a JPEG."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..", ".")]
    shown = "/".join(part.encode("utf-8", "backslashreplace").decode().replace("\\", "_") for part in parts)
    stem = str(PurePosixPath(shown).with_suffix(""))
    name, number = f"{stem}.jpg", 1
    while name.lower() in used:
        number += 1
        name = f"{stem} ({number}).jpg"
    used.add(name.lower())
    return name
