"""Settings of the server: where it listens, who may use it, and how much work it accepts."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from finesight.data.decode_limits import DecodeLimits
from finesight.errors import FineSightError


@dataclass(frozen=True)
class ServerConfig:
    """Describe one server. The default limits keep a machine with 2 cores and 4 GB responsive under any load."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free port
    token: str | None = field(default=None, repr=False)  # every request must present it
    metrics_open: bool = False  # /metrics needs no token
    allow_hosts: Sequence[str] = ()  # names in the Host header that are accepted beside localhost and ``host``
    open_browser: bool = False
    cache_dir: Path | None = None  # of thumbnails
    camera_data: bool | None = None  # show date, camera and place; by default where only this machine is served

    upload_bytes: int = 20 * 2**20
    upload_seconds: float = 30.0  # for the whole body of a request
    all_uploads_bytes: int = 160 * 2**20  # of all uploads that are being read or are waiting
    arriving: int = 64  # uploads that are being received at a time
    header_seconds: float = 15.0  # to send the request line and the headers
    pixels: int = 50_000_000  # of an image that is decoded; the library's own limit is for folders one trusts
    work: int = 500_000_000  # pixels times scans of a JPEG that is decoded
    reads: int = 200_000  # of a file while it is decoded: a file of many small pieces takes minutes
    decode_seconds: float = 3.0  # of processor time for one image
    queue: int = 32  # images waiting for the network
    waiting: int = 256  # searches, thumbnails and lists waiting
    requests: int = 400  # of any kind at a time
    connections: int = 600
    remembered: int = 64  # uploaded images that are kept for later requests
    remembered_bytes: int = 128 * 2**20
    thumbnail_bytes: int = 512 * 2**20  # of all thumbnails on disk

    @property
    def decoding(self) -> DecodeLimits:
        """What decoding one image may cost."""
        return DecodeLimits(self.pixels, self.work, self.reads, self.decode_seconds)

    def __post_init__(self) -> None:
        if self.token and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise FineSightError("--token must be letters, digits and signs of ASCII, without spaces.")


def is_address(name: str) -> bool:
    """Return whether ``name`` is an IP address without brackets."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine can reach ``host``."""
    bare = host.strip("[]")
    return bare.lower() == "localhost" or (is_address(bare) and ipaddress.ip_address(bare).is_loopback)
