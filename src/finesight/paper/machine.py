"""How a number was made: machine, commit, version, time, memory."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from finesight.version import __version__


@dataclass
class Usage:
    """Wall-clock seconds and the peak memory (of the GPU where there is one) of a piece of work."""

    seconds: float = 0.0
    peak_memory_mb: float = 0.0


class Meter:
    """Measure time and memory from the moment it is made."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        _reset_peak()

    def usage(self) -> Usage:
        """Return what was used so far."""
        return Usage(time.monotonic() - self.began, _peak() / 2**20)


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # Linux only; elsewhere the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated())
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def provenance() -> dict[str, str]:
    """Return the commit, version and machine of results that are made from now on."""
    return {"commit": commit(), "version": __version__, "machine": machine()}


def machine() -> str:
    """Describe processor, cores, GPUs, system and torch in one line."""
    gpus = f", {torch.cuda.device_count()} × {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{_processor()}, {os.cpu_count()} cores{gpus}, {platform.system()}, torch {torch.__version__}"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    """Return the commit of FineSight's source tree, with a + where it was changed; empty for an installed package."""
    here = Path(__file__).resolve().parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        changes = _git(here, "status", "--porcelain", "--", str(here.parent))
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changes else "")


def _git(folder: Path, *words: str) -> str:
    """Run git without the lock that it would take from whoever works in the tree."""
    command = ["git", "--no-optional-locks", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
