"""Two machines on one: network namespaces joined by a cable, each with an address of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from processes import TIMEOUT, Finished, environment

NETWORK = "10.213.47"  # seen inside the namespaces only
PORT = 29400
LAUNCHERS = ("torchrun", "slurm", "kubernetes")


@dataclass
class Host:
    """A namespace; ``ip netns exec`` runs programs in it."""

    number: int
    name: str

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number + 1}"

    def cut(self, *, off: bool = True) -> None:
        """Pull the cable, or plug it in again."""
        _ip("-n", self.name, "link", "set", "cable", "down" if off else "up")

    @property
    def sent_packets(self) -> int:
        """How many packets have left by the cable."""
        file = "/sys/class/net/cable/statistics/tx_packets"
        words = ["ip", "netns", "exec", self.name, "cat", file]
        return int(subprocess.run(words, check=True, capture_output=True).stdout)

    def start(self, words: list[str], **env: str) -> Running:
        own = {"GLOO_SOCKET_IFNAME": "cable", "FINESIGHT_TEST_NETWORKS": f"{NETWORK}.0/24"}
        variables = environment(**own, PYTHONPATH=os.pathsep.join(sys.path), **env)
        return Running(["ip", "netns", "exec", self.name, sys.executable, *words], variables)


@dataclass
class Running:
    """A process in a session of its own, which writes to files."""

    words: list[str]
    variables: dict[str, str]
    cwd: Path | None = None
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="finesight-host-")))

    def __post_init__(self) -> None:
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                self.words, env=self.variables, cwd=self.cwd, stdout=out, stderr=err, start_new_session=True
            )

    def kill(self) -> None:
        """End the process and those it started, as a power failure does."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self, seconds: float = TIMEOUT) -> Finished:
        try:
            self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                self.kill()
        found = Finished(self.process.returncode, *((self.folder / name).read_text() for name in ("out", "err")))
        shutil.rmtree(self.folder)
        return found


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_not() -> str:
    """Why there can be no namespaces here; an empty text if there can."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "network namespaces need Linux and the ip command"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    try:
        _ip("netns", "add", f"fs-try-{os.getpid()}")
        _ip("netns", "del", f"fs-try-{os.getpid()}")
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here: {error.stderr.strip()}"
    return ""


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    hosts = [Host(number, f"fs-{os.getpid()}-{number}") for number in range(2)]
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
        ends = [f"fs{os.getpid()}-{number}" for number in range(2)]
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for host, end in zip(hosts, ends, strict=True):
            _ip("link", "set", end, "netns", host.name, "name", "cable")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "cable")
            for link in ("cable", "lo"):
                _ip("-n", host.name, "link", "set", link, "up")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)


@contextmanager
def host_that_hears_nobody() -> Iterator[Host]:
    """Yield a host whose cable leads nowhere: whatever is sent is lost, and counted (``sent_packets``)."""
    host = Host(0, f"fs-{os.getpid()}-alone")
    names = Path("/etc/netns") / host.name / "resolv.conf"  # what it takes for /etc/resolv.conf
    try:
        names.parent.mkdir(parents=True)
        names.write_text(f"nameserver {NETWORK}.53\n")
        _ip("netns", "add", host.name)
        _ip("-n", host.name, "link", "add", "cable", "type", "veth", "peer", "name", "end")
        _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "cable")
        for link in ("cable", "end"):  # neither asks who is there
            _ip("-n", host.name, "link", "set", link, "arp", "off", "addrgenmode", "none", "up")
        _ip("-n", host.name, "link", "set", "lo", "up")
        _ip("-n", host.name, "route", "add", "default", "dev", "cable")
        yield host
    finally:
        subprocess.run(["ip", "netns", "del", host.name], check=False, capture_output=True)
        shutil.rmtree(names.parent)


def launch(hosts: list[Host], launcher: str, options: Callable[[int], list[str]], port: int = PORT) -> list[Running]:
    """``finesight OPTIONS`` on each host, started as the launcher does."""
    first = hosts[0].address
    running = []
    for host in hosts:
        words, env = ["-m", "finesight"], {"MASTER_ADDR": first, "MASTER_PORT": str(port)}
        if launcher == "torchrun":
            meeting = ["--nnodes", "2", "--node-rank", str(host.number), "--master-addr", first]
            words = ["-m", "torch.distributed.run", *meeting, "--master-port", str(port), "-m", "finesight"]
        elif launcher == "kubernetes":
            env |= {"RANK": str(host.number), "WORLD_SIZE": "2"}
        else:  # what srun sets, on a cluster where the first host has this name
            env = {"SLURM_PROCID": str(host.number), "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}
            env |= {"SLURM_NODELIST": f"{first},{hosts[1].address}", "SLURM_JOB_ID": str(port), "SLURM_NNODES": "2"}
            env |= {"SLURM_LOCALID": "0", "SLURM_NODEID": str(host.number), "SLURM_JOB_NAME": "birds"}
        running.append(host.start([*words, *options(host.number)], **env))
    return running


def wait_for(condition: Callable[[], bool], running: list[Running]) -> None:
    """Wait for what must happen while all are running."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        ended = next((one for one in running if one.process.poll() is not None), None)
        if ended is not None or time.monotonic() > deadline:
            for one in running:
                one.kill()
            raise AssertionError([one.wait() for one in running])
        time.sleep(0.01)


def in_hosts(hosts: list[Host], task: str, folder: Path) -> list[Any]:
    """What the function ``task`` ("module:name") returns on each host, given its rank."""
    script = str(Path(__file__).with_name("host_task.py"))
    running = [host.start([script, task, str(folder), str(host.number), hosts[0].address]) for host in hosts]
    for finished in [one.wait() for one in running]:
        assert finished.code == 0, finished.err
    return [torch.load(folder / f"{host.number}.pt", weights_only=True) for host in hosts]
