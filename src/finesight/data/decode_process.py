"""Decode one picture from standard input in a process that may be killed: ``python -m finesight.data.decode_process``.

Its argument are the settings. It writes a line of JSON and then the pixels, or the reason why there are none.
"""

from __future__ import annotations

import io
import json
import signal
import sys
from contextlib import suppress

from finesight.data.decode import UnreachableFile, decode_small
from finesight.data.decode_limits import DecodeLimits
from finesight.errors import SkipImage

ADDRESS_SPACE = 4 * 2**30  # bytes


def limit_process(seconds: float) -> None:
    """Let the system end this process when it takes more memory or processor time; Windows cannot."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C in a terminal reaches us too; a trace would be in the way
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (max(1, round(seconds)), resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


def main() -> None:
    """Decode, and write the answer."""
    at_least, trim, settings = json.loads(sys.argv[1])
    limits = DecodeLimits(**settings)
    limit_process(limits.seconds)
    stream = sys.stdin.buffer if sys.stdin.buffer.seekable() else io.BytesIO(sys.stdin.buffer.read())
    try:
        image, size = decode_small(stream, at_least, trim, limits)
    except SkipImage as skip:
        answer, pixels = {"reason": str(skip), "passes": isinstance(skip, UnreachableFile)}, b""
    else:
        answer, pixels = {"shown": image.size, "size": size}, image.tobytes()
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.write(pixels)


if __name__ == "__main__":
    main()
