"""Disks that are full: small file systems in memory, which only root may mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class NoSmallDisk(pytest.skip.Exception):
    """The test is skipped with this reason: only root may mount a disk, and not everywhere."""


class SmallDisk:
    """A file system of a few KiB."""

    def __init__(self, folder: Path, kib: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "finesight-test", str(folder)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoSmallDisk(f"no small disk can be mounted here: {done.stderr.strip()}")

    def resize(self, kib: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={kib}k", str(self.folder)], check=True)

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)

    def make_writable(self) -> None:
        subprocess.run(["mount", "-o", "remount,rw", str(self.folder)], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[SmallDisk]:
    """Mount a disk of so many KiB at ``folder`` while the block runs; skip the test where that is not allowed."""
    if os.geteuid() != 0:
        raise NoSmallDisk("a small disk can only be mounted by root")
    disk = SmallDisk(folder, kib)
    try:
        yield disk
    finally:
        disk.unmount()
