"""From training to an answer of the server, nothing is sent to another machine: by gRPC, torch or anything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from hosts import Host, Running, host_that_hears_nobody, why_not
from processes import TINY, environment, succeeded

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

ASK = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 9))"
WORK = """
import os, signal, sys, threading, time, urllib.request
from contextlib import suppress
from finesight.cli.main import main

def finesight(*words):
    sys.argv = ["finesight", *words]
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0

def ask_the_server():
    while True:
        with suppress(OSError):
            print("answered", urllib.request.urlopen("http://127.0.0.1:8000/healthz", timeout=60).status)
            return os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

birds, query, index, *tiny = sys.argv[1:]
assert finesight("train", "--data", birds, "--out", "run", "--epochs", "1", *tiny) == 0
assert finesight("index", "run", birds, "--index", index, "--quiet") == 0
assert finesight("search", index, query, "-k", "1") == 0
threading.Thread(target=ask_the_server, daemon=True).start()
finesight("serve", index, "--port", "8000", "--no-open", "--quiet")
"""


@pytest.fixture
def host() -> Iterator[Host]:
    if reason := why_not():
        pytest.skip(reason)
    with host_that_hears_nobody() as made:
        yield made


def test_nothing_is_sent(host: Host, class_folders: Path, tmp_path: Path) -> None:
    """With an index in Milvus Lite, which talks by gRPC, where it is installed."""
    places = [place for place in os.environ["PYTHONPATH"].split(os.pathsep) if not place.endswith("no_network")]
    python = ["ip", "netns", "exec", host.name, sys.executable, "-c"]

    def run(*words: str) -> Running:
        variables = environment(PYTHONPATH=os.pathsep.join(places))
        return Running([*python, *words], variables, cwd=tmp_path)

    query = str(next(class_folders.glob("*/*.png")))
    index = "birds.db" if find_spec("milvus_lite") else "birds"
    done = succeeded(run(WORK, str(class_folders), query, index, *TINY).wait())
    assert "answered 200" in done.out
    assert host.sent_packets == 0
    succeeded(run(ASK).wait())
    assert host.sent_packets == 1, "what is sent is counted"
