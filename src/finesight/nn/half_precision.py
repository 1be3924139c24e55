"""Try half precision on the processor in a child process before a command depends on it.

A processor may promise instructions for bfloat16 (AMX, AVX512_BF16) that its host, often a virtual machine, does not
allow. The first of them then ends the process at once, without a message.
"""

from __future__ import annotations

import hashlib
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from finesight.data.remembered import Remembered
from finesight.errors import FineSightError

FILE = "precisions.json"  # in the cache folder: which machines have passed
SECONDS = 300.0  # a child that takes longer says nothing: loading torch from a slow disk may
TRIAL = """
import torch
from torch import nn
layers = nn.Conv2d(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(40000, 64)
network = nn.Sequential(*layers).to(memory_format=torch.channels_last)
with torch.autocast("cpu", torch.bfloat16):
    loss = network(torch.randn(4, 3, 59, 59)).float().square().mean()
loss.backward()
"""


def uses_half_precision(precision: str, accelerator: str = "auto") -> bool:
    """Return whether ``--precision`` means bfloat16 on the processor, which is also what 16 bits mean there."""
    has_gpu = accelerator != "cpu" and torch.cuda.is_available()
    return precision in ("16", "bf16") and not has_gpu


def require_half_precision(command: Sequence[str] = (sys.executable, "-c", TRIAL), *, seconds: float = SECONDS) -> None:
    """Raise FineSightError if ``command``, by default a small network's step in bfloat16, dies or fails here.

    A machine that passed is not tried again (see ``Remembered``).
    """
    trials, key = Remembered(FILE), _machine(command)
    if key in trials.read():
        return
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return
    if child.returncode < 0:
        raise FineSightError(
            f"This computer cannot compute in half precision: a trial of it was ended by {_signal(-child.returncode)}. "
            "The processor promises instructions for it that the system does not allow. Use full precision."
        )
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FineSightError(f"This computer cannot compute in half precision ({reason}). Use full precision.")
    trials.keep(key, 1)


def _machine(command: Sequence[str]) -> str:
    """Return what the answer depends on: the processor as the system shows it, torch, and what was tried."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = "\n".join(next((line for line in lines if line.startswith(k)), "") for k in ("model name", "flags"))
    except OSError:  # not Linux
        processor = platform.processor()
    digest = hashlib.blake2b(f"{processor}{list(command)}".encode(), digest_size=8).hexdigest()
    return f"{platform.node()} {platform.machine()} {digest}, torch {torch.__version__}"


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"
