"""Connect to a Ray cluster, and look whether its machines can do the work: each mistake is one sentence, and soon."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finesight import __version__
from finesight.data.places import address
from finesight.errors import FineSightError, first_line, last_line

ADDRESS = re.compile(r"^(?:ray://)?(?P<host>[^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})$")
PATIENCE = 10.0  # seconds until a machine that does not answer is taken for gone
# It would tell its makers; even that it must not is told, by a head that no ray.init() started.
NO_REPORTS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9"}
CLIENT_PATIENCE = {"RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": "5", "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S": "5"}
SETTINGS = 4  # the number of a frame of HTTP/2
BUSY = "Initialization failure from server"  # of Ray Client: a busy head did not begin a process for us in time
INIT_TRIES = 3
LOOK_SECONDS = 60.0  # until all machines have been looked at; what is busy longer is not waited for
LOOKS = 3  # at a machine that fails to answer and is still there
SAMPLE = 4  # images that every machine must see one of


@contextmanager
def connected(cluster: str) -> Iterator[Any]:
    """Yield Ray, connected to a cluster ("ray://HOST:10001", "HOST:6379", "auto") or to one made here ("local").

    Raises FineSightError if Ray is not installed or the cluster does not answer.
    """
    for name, value in {**NO_REPORTS, **CLIENT_PATIENCE}.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise FineSightError(f"--cluster needs Ray ({error}): pip install 'finesight[ray]'.") from error
    if ray.is_initialized():
        yield ray
        return
    _require_answer(cluster)
    own: dict[str, Any] = {"include_dashboard": False} if cluster == "local" else {}
    for tries_left in reversed(range(INIT_TRIES)):
        try:
            ray.init(address=cluster, log_to_driver=False, logging_level=logging.ERROR, **own)
            break
        except Exception as error:  # ConnectionError, ValueError, RuntimeError: by where it fails
            busy = BUSY in str(error)  # the head's trace follows
            if not (tries_left and busy):
                said = last_line(error) if busy else first_line(error)
                raise FineSightError(f"The Ray cluster {cluster} cannot be used: {said}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_answer(cluster: str) -> None:
    """Raise FineSightError if nobody listens there: Ray itself would try for minutes."""
    if cluster in ("local", "auto"):
        return
    found = ADDRESS.match(cluster)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise FineSightError(f"--cluster takes ray://HOST:10001, HOST:6379, auto or local, not {cluster!r}.")
    try:
        with socket.create_connection((found["host"].strip("[]"), int(found["port"])), timeout=PATIENCE) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0" and not _speaks_http2(connection):
                raise FineSightError(f"The Ray cluster {cluster} cannot be used: what answers there is not Ray.")
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise FineSightError(f"The Ray cluster {cluster} cannot be reached: {reason.lower()}.") from None


def _speaks_http2(connection: socket.socket) -> bool:
    """Return whether a server greets with its settings as those of HTTP/2 do: each of Ray's ports is one (gRPC)."""
    settings = bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0))
    try:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        return connection.recv(4, socket.MSG_WAITALL)[3:] == bytes((SETTINGS,))
    except (TimeoutError, ConnectionError):
        return False


def require_able(ray: Any, files: Sequence[str], folder: Path | None = None) -> bool:
    """Raise FineSightError unless every machine that computes has this FineSight, and sees some of the images.

    Return whether all of them also see ``folder``, and may write there.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    step = max(len(files) // SAMPLE, 1)
    sample = [os.fsencode(file) for file in files[::step][:SAMPLE]]
    look = ray.remote(num_cpus=0, max_retries=0)(_looker())
    machines, shared = _machines(ray), folder is not None
    for _ in range(LOOKS):
        if not machines:
            break
        asked = {
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                sample, str(folder)
            ): node
            for node in machines
        }
        failed = set()
        answers, silent = ray.wait(list(asked), num_returns=len(asked), timeout=LOOK_SECONDS)
        shared = shared and not silent
        for answer in answers:
            try:
                version, missing, unseen, writes = ray.get(answer)
            except ray.exceptions.RayError:  # its process was lost, or the whole machine: then others do its work
                failed.add(asked[answer])
                continue
            _require_fit(machines[asked[answer]], version, missing, unseen, os.fsdecode(sample[-1]))
            shared = shared and writes
        machines = {node: name for node, name in _machines(ray).items() if node in failed} if failed else {}
    return shared and not machines


def _machines(ray: Any) -> dict[str, str]:
    """Return the addresses of all nodes that compute and are there, as far as Ray knows."""
    found = (node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU"))
    return {node["NodeID"]: node["NodeManagerAddress"] for node in found}


def _require_fit(name: str, version: str, missing: str, unseen: str, image: str) -> None:
    """Raise FineSightError if what a machine answered is not what is needed."""
    machine = f"The machine {name} of the cluster"
    if missing:
        raise FineSightError(f"{machine} has no FineSight ({missing}): pip install 'finesight[ray]' there.")
    if version != __version__:
        raise FineSightError(f"{machine} has FineSight {version}, and this one has {__version__}: install the same.")
    if unseen:
        raise FineSightError(
            f"{machine} does not see the images, as {address(image)} ({unseen}): they must lie there under the same "
            "path, or behind an address as s3:// that it has access to."
        )


def _looker() -> Callable[[list[bytes], str], tuple[str, str, str, bool]]:
    """Return a function that is sent as it is: one of a module would be looked for in the FineSight over there."""

    def look(sample: list[bytes], folder: str) -> tuple[str, str, str, bool]:
        """Return the version here, what is missing, why none of the images is seen, and whether it writes there."""
        import os

        try:
            import finesight
            from finesight.data.places import stamp
            from finesight.errors import FineSightError, SkipImage
        except ImportError as error:
            return "", str(error), "", False
        writes = os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
        unseen = ""
        for name in sample:
            try:
                stamp(os.fsdecode(name))
                return finesight.__version__, "", "", writes
            except (SkipImage, FineSightError) as error:
                unseen = str(error)
        return finesight.__version__, "", unseen, writes

    return look
