"""What a machine gives a process, read from the files of made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from finesight.io.machine import Cores, count_cores, find_container, find_disk, folder_size, processor, read_memory

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         100000 kB\nMemAvailable:    9000000 kB\n"


def machine(root: Path, **files: str) -> Path:
    """A folder with files of a system; a name has __ for /."""
    for name, text in files.items():
        file = root / name.replace("__", "/").replace("DOT", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_this_machine() -> None:
    cores = count_cores()
    assert 1 <= cores.usable <= cores.allowed <= cores.machine
    total, free, limit = read_memory()
    assert total > 1e8
    assert free is None or 0 < free <= total
    assert limit is None or limit < total
    disk = find_disk(Path.home() / "no" / "such" / "folder")
    assert 0 <= disk.free <= disk.total


def test_a_container_that_gives_less(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__self__cgroup="0::/pods/mine\n",
        proc__meminfo=MEMINFO,
        sys__fs__cgroup__pods__mine__cpuDOTmax="max 100000\n",
        sys__fs__cgroup__pods__cpuDOTmax="150000 100000\n",
        sys__fs__cgroup__pods__mine__memoryDOTmax="2000000000\n",
        sys__fs__cgroup__pods__memoryDOTmax="max\n",
    )
    assert count_cores(root).limit == 1.5
    assert read_memory(root) == (16_000_000 * 1024, 9_000_000 * 1024, 2_000_000_000)


def test_control_groups_of_the_first_version(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__meminfo=MEMINFO,
        sys__fs__cgroup__cpu__cpuDOTcfs_quota_us="400000\n",
        sys__fs__cgroup__cpu__cpuDOTcfs_period_us="100000\n",
        sys__fs__cgroup__memory__memoryDOTlimit_in_bytes="9223372036854771712\n",  # so "none" is written there
    )
    assert count_cores(root).limit == 4
    assert read_memory(root)[2] is None
    (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert count_cores(root).limit is None


@pytest.mark.parametrize(("limit", "usable"), [(None, 8), (2.0, 2), (0.5, 1), (1.5, 2), (16.0, 8)])
def test_cores_that_can_be_kept_busy(limit: float | None, usable: int) -> None:
    assert Cores(64, 8, limit).usable == usable


def test_disks(tmp_path: Path) -> None:
    lines = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw",
        f"23 22 0:44 / {tmp_path}/far rw - nfs4 server:/x rw",
        f"24 22 0:45 / {tmp_path}/a\\040b rw - tmpfs tmpfs rw",
        f"25 22 0:46 / {tmp_path}/over rw - fuse.fuse-overlayfs x rw",
        f"26 22 0:46 / {tmp_path}/bucket rw - fuse.s3fs x rw",
    )
    for name in ("far", "a b", "over", "bucket"):
        (tmp_path / name).mkdir()
    root = machine(tmp_path / "root", proc__self__mountinfo="\n".join(lines))
    kinds = {name: find_disk(tmp_path / name / "cache", root) for name in ("far", "a b", "over", "bucket", "farther")}
    assert {name: disk.kind for name, disk in kinds.items()} == {
        "far": "nfs4",
        "a b": "tmpfs",
        "over": "fuse.fuse-overlayfs",
        "bucket": "fuse.s3fs",
        "farther": "ext4",
    }
    assert [name for name, disk in kinds.items() if disk.is_remote] == ["far", "bucket"]


def test_containers_and_processors(tmp_path: Path) -> None:
    info = "processor: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx avx2\n\nprocessor: 1\nmodel name: Other\n"
    root = machine(tmp_path / "docker", DOTdockerenv="", proc__cpuinfo=info)
    assert find_container(root) == "docker"
    assert processor(root) == ("Some CPU", {"fpu", "avx", "avx2"})
    assert find_container(machine(tmp_path / "podman", run__DOTcontainerenv="")) == "podman"
    assert processor(tmp_path / "nothing") == ("", frozenset())


def test_the_size_of_a_folder(tmp_path: Path) -> None:
    machine(tmp_path, a="123", b__c="4567")
    (tmp_path / "dangling").symlink_to("nowhere-at-all")
    assert folder_size(tmp_path) == 7 + len("nowhere-at-all")
    assert folder_size(tmp_path / "none") == 0
