"""How a number was made: machine, commit, version, time, memory."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finesight.io.atomic import write_atomic
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
    if peak := system_fact("self/status", "VmHWM"):
        return float(peak.split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def provenance() -> dict[str, str]:
    """Return the commit, version and machine of results that are made from now on."""
    return {"commit": commit(), "version": __version__, "machine": machine()}


def machine() -> str:
    """Describe processor, cores, GPUs, system and torch in one line."""
    gpus = f", {torch.cuda.device_count()} × {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    processor = system_fact("cpuinfo", "model name") or platform.machine()
    return f"{processor}, {os.cpu_count()} cores{gpus}, {platform.system()}, torch {torch.__version__}"


def system_fact(file: str, name: str) -> str:
    """Return what a file below /proc says of ``name``; nothing where the system has no such file."""
    with suppress(OSError):
        for line in Path("/proc", file).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def record_measurement(measurement: Mapping[str, Any], file: Path | None, libraries: str = "") -> str:
    """Return what a script of ``benchmarks`` measured as JSON, with machine, commit and date; write it to ``file``."""
    made = {"machine": machine() + libraries, "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    text = json.dumps({**measurement, **made}, indent=2)
    if file is not None:
        write_atomic(file, f"{text}\n")
    return text


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
