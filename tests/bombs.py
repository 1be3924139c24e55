"""Small files that are much work to decode."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

BANDS = {1: 0, 3: 2, 4: 6}  # and the color type of a PNG


def scan_bomb(side: int, scans: int) -> bytes:
    """A gray progressive JPEG with so many scans more than usual: each takes as long as decoding the picture."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * scans + data[-2:]


def png_bomb(side: int, bands: int = 4) -> bytes:
    """A whole PNG of one color: a thousandth of its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer, row = zlib.compressobj(9), bytes(1 + bands * side)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, BANDS[bands], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
