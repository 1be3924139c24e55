"""Build wheels, and install them where there is nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = {"finesight": ROOT, "finesight-onnx": ROOT / "packaging" / "finesight-onnx"}
INSTALL_SECONDS = 900.0  # only for a network that hangs


def build_wheel(name: str, folder: Path) -> Path:
    """Build a distribution with the hatchling that is installed: no network is needed."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(PROJECTS[name])], check=True, env=plain_environment())
    return next(folder.glob(f"{name.replace('-', '_')}-*.whl"))


def plain_environment(**more: str) -> dict[str, str]:
    """The environment of a user: without the tests' PYTHONPATH, which also keeps pip from the network."""
    mine = {"PYTHONPATH": None, "PYTHONHOME": None, "VIRTUAL_ENV": None}
    kept = {name: value for name, value in os.environ.items() if name not in mine}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **more}
