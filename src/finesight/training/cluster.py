"""Processes on several machines that torchrun, Slurm or Kubernetes started: which one this is, and whether all live.

The launcher tells by environment variables. The processes meet before anything is read, so that the first one can tell
the others what it has decided. While they work, each says every few seconds that it is alive. Without that, a
machine that loses its power would leave the others waiting for it for half an hour.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.kubeflow import KubeflowEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from finesight.errors import FineSightError, first_line
from finesight.training.config import RuntimeConfig

BEAT = 2.0  # seconds between two signs of life
SILENCE = 30.0  # seconds after which a process is given up
MEETING = timedelta(minutes=10)  # until all processes must have started
PATIENCE = timedelta(days=1)  # with a living process that decodes its images, or scores them
AGAIN = "Start the same command on all machines again: it continues from the last checkpoint."
_CUT_OFF = ("connection closed by peer", "connection reset", "broken pipe", "connection refused", "timed out", "nccl")


@dataclass(frozen=True)
class Launch:
    """What the launcher says of this process."""

    rank: int
    processes: int
    devices: int  # processes of a machine
    environment: ClusterEnvironment | None = None  # None: Lightning finds it itself


def find_launch() -> Launch | None:
    """Return what the launcher says; None if this command was started by hand, or has no other beside it.

    Raises FineSightError if its variables do not fit together.
    """
    known = os.environ
    if "TORCHELASTIC_RUN_ID" in known:
        launch = Launch(_number("RANK"), _number("WORLD_SIZE"), _number("LOCAL_WORLD_SIZE"))
    elif "SLURM_PROCID" in known and "SLURM_NTASKS" in known and not _is_interactive():
        tasks = _number("SLURM_NTASKS")
        if tasks > 1 and "SLURM_NTASKS_PER_NODE" not in known:
            raise FineSightError("Slurm was given --ntasks without --ntasks-per-node: give both, and start by srun.")
        each = _number("SLURM_NTASKS_PER_NODE") if tasks > 1 else 1
        launch = Launch(_number("SLURM_PROCID"), tasks, each, SLURMEnvironment() if tasks > 1 else None)
    elif {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= known.keys():
        launch = Launch(_number("RANK"), _number("WORLD_SIZE"), 1, KubeflowEnvironment())
    else:
        return None
    return launch if launch.processes > 1 else None


def _is_interactive() -> bool:
    return os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise FineSightError(f"The launcher set {name}={text!r}, which is not a number.")
    return int(text)


def is_main_process() -> bool:
    """Return whether this is the first process of all. Lightning sets these variables for those that it starts."""
    if launch := find_launch():
        return launch.rank == 0
    return os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"


def launched(runtime: RuntimeConfig) -> RuntimeConfig:
    """Return the settings with the launcher's number of machines and devices.

    Raises FineSightError if others were given.
    """
    launch = find_launch()
    if launch is None:
        return runtime
    given, nodes = runtime.devices * runtime.nodes, launch.processes // launch.devices
    if given not in (1, launch.processes):
        raise FineSightError(
            f"--devices {runtime.devices} --nodes {runtime.nodes} are {given} processes, and the launcher started "
            f"{launch.processes}: leave the options out."
        )
    return runtime.model_copy(update={"devices": launch.devices, "nodes": nodes})


@contextmanager
def joined(runtime: RuntimeConfig) -> Iterator[None]:
    """Let the processes of a launcher meet, and watch over them while the block runs. Otherwise nothing happens.

    Raises FineSightError if they do not meet, or if another one ends. One that merely falls silent ends this process
    with a sentence: what waits for it cannot be woken.
    """
    launch = find_launch()
    if launch is None or dist.is_initialized():
        with _explained():
            yield
        return
    pulse = _meet(launch, runtime)
    try:
        with _explained():
            yield
    except BaseException:
        pulse.leave("failed")
        raise
    pulse.leave("done")


def _meet(launch: Launch, runtime: RuntimeConfig) -> _Pulse:
    if isinstance(launch.environment, SLURMEnvironment):
        os.environ["MASTER_ADDR"] = launch.environment.main_address
        os.environ["MASTER_PORT"] = str(launch.environment.main_port)
    address, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
    gpu = runtime.accelerator != "cpu" and torch.cuda.is_available()
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    try:
        at, rank, count = next(rendezvous("env://", launch.rank, launch.processes, timeout=MEETING))
        dist.init_process_group(backend, store=at, rank=rank, world_size=count, timeout=PATIENCE)
        store = TCPStore(address, port, is_master=False, timeout=MEETING)
    except (RuntimeError, ValueError, OSError) as error:  # torch's own errors are RuntimeErrors
        raise FineSightError(
            f"Not all of the {launch.processes} processes met at {address}:{port}: {first_line(error).rstrip('.')}. "
            "Check that all machines run the same command and reach this address."
        ) from None
    return _Pulse(store, launch)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what torch says when a connection breaks into one sentence."""
    try:
        yield
    except RuntimeError as error:
        if not dist.is_initialized() or not any(words in str(error).lower() for words in _CUT_OFF):
            raise
        raise FineSightError(f"Another process of this training has ended or is cut off. {AGAIN}") from error


class _Pulse:
    """Says that this process lives, and listens for the others, by the store at which they met.

    One thread talks to the store, which may never answer; another one looks at the clock.
    """

    def __init__(self, store: TCPStore, launch: Launch) -> None:
        self.store, self.rank = store, launch.rank
        self.others = [rank for rank in range(launch.processes) if rank != launch.rank]
        self.processes = launch.processes
        now = time.monotonic()
        self.heard = dict.fromkeys(self.others, now)
        self.said: dict[int, str] = {}
        self.left = threading.Event()
        for work in (self._talk, self._watch):
            threading.Thread(target=work, name="pulse", daemon=True).start()

    def leave(self, word: str) -> None:
        """Tell the others that this process is ``done`` or has ``failed``."""
        self.left.set()
        teller = threading.Thread(target=self._say, args=(word,), daemon=True)
        teller.start()
        teller.join(BEAT)

    def _say(self, word: str) -> None:
        with suppress(RuntimeError):
            self.store.set(f"finesight/{self.rank}", f"{socket.gethostname()} {word}")

    def _talk(self) -> None:
        beat = 0
        with suppress(RuntimeError):  # the watch sees that nobody is heard any more
            while not self.left.is_set():
                beat += 1
                self._say(str(beat))
                for rank in self.others:
                    key = f"finesight/{rank}"
                    said = self.store.get(key).decode() if self.store.check([key]) else ""
                    if said != self.said.get(rank, "") or said.endswith(" done"):
                        self.heard[rank], self.said[rank] = time.monotonic(), said
                self.left.wait(BEAT)

    def _watch(self) -> None:
        while not self.left.wait(BEAT / 2):
            for rank, last in self.heard.items():
                host, _, word = self.said.get(rank, "").rpartition(" ")
                who = f"Process {rank + 1} of {self.processes}{f' (on {host})' if host else ''}"
                if word == "failed":
                    self._end(f"{who} has stopped; its own message says why. {AGAIN}")
                if time.monotonic() - last > SILENCE:
                    self._end(f"{who} has not answered for {SILENCE:.0f} seconds: it, or its network, is down. {AGAIN}")

    def _end(self, words: str) -> None:
        """End this process, unless it ends by itself at this moment."""
        if self.left.wait(BEAT):
            return
        print(f"finesight: {words}", file=sys.stderr, flush=True)
        os._exit(2)  # the main thread waits in a call that cannot be interrupted; all that is saved is whole
