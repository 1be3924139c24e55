"""What this machine gives a process: cores, memory, disks, and the limits that a container sets.

``root`` is where the files of the system are, so that those of another machine can be read too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from finesight.io.parallel import available_cores

ROOT = Path("/")
NETWORK_DISKS = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "lustre", "gluster", "beegfs", "gpfs", "fuse.")
LOCAL_FUSE = ("fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal", "fuse.bindfs")


@dataclass(frozen=True)
class Cores:
    """Cores of the machine, those that this process may run on, and the share of time that a container gives it."""

    machine: int
    allowed: int
    limit: float | None  # None: no limit

    @property
    def usable(self) -> int:
        """How many can be kept busy."""
        return self.allowed if self.limit is None else max(1, min(self.allowed, int(self.limit + 0.5)))


@dataclass(frozen=True)
class Disk:
    """The disk that a folder is on, or will be."""

    kind: str  # ext4, nfs4, tmpfs, …; empty where the system does not tell
    free: int  # bytes
    total: int

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over a network, as far as its kind tells."""
        return self.kind.startswith(NETWORK_DISKS) and self.kind not in LOCAL_FUSE


def count_cores(root: Path = ROOT) -> Cores:
    """Return what this process has of the machine's cores."""
    return Cores(os.cpu_count() or 1, available_cores(), _cpu_limit(root))


def read_memory(root: Path = ROOT) -> tuple[int, int | None, int | None]:
    """Return bytes: of the machine, what is free now, and the limit of the container. None where it is not known."""
    facts: dict[str, int] = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        facts[name] = int(value.split()[0]) * 1024
    total = facts.get("MemTotal") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [int(text) for text in _limits(root, "memory.max", "memory/memory.limit_in_bytes") if text.isdigit()]
    limit = min((value for value in limits if value < total), default=None)
    return total, facts.get("MemAvailable"), limit


def find_disk(folder: Path, root: Path = ROOT) -> Disk:
    """Return the disk of a folder, which need not exist yet."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    usage = shutil.disk_usage(there)
    kind, longest = "", -1
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        mount = before.split()[4].replace("\\040", " ")
        if there.resolve().is_relative_to(mount) and len(mount) >= longest:
            kind, longest = after.split()[0], len(mount)
    return Disk(kind, usage.free, usage.total)


def find_container(root: Path = ROOT) -> str:
    """Return docker, podman, kubernetes or another name of what this process runs in; empty for the machine itself."""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return os.environ.get("container", "")  # noqa: SIM112 - so systemd-nspawn and lxc write it


def processor(root: Path = ROOT) -> tuple[str, frozenset[str]]:
    """Return the name of the processor and what it can do (avx2, …), both empty where the system does not tell."""
    name, flags = "", frozenset[str]()
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and not name:
            name = value.strip()
        if key.strip() in ("flags", "Features") and not flags:
            flags = frozenset(value.split())
    return name, flags


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder; what cannot be read counts nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _cpu_limit(root: Path) -> float | None:
    """Return how many cores' time the container gives, None for all there is."""
    found = []
    for text in _limits(root, "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            found.append(int(quota) / int(period))
    quota, period = (_read(root / f"sys/fs/cgroup/cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if quota.isdigit() and period.isdigit():
        found.append(int(quota) / int(period))
    return min(found, default=None)


def _limits(root: Path, name: str, former: str = "") -> Iterator[str]:
    """Yield what the control groups of this process say, its own and all above it."""
    top = root / "sys/fs/cgroup"
    own = next((line[3:] for line in _read(root / "proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    place = top / own.strip("/")
    while place.is_relative_to(top):
        if text := _read(place / name).strip():
            yield text
        place = place.parent
    if former and (text := _read(top / former).strip()):
        yield text


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
