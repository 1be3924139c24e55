"""The tests themselves reach nothing but this machine, nor do the processes that they start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from refusals import FOLDER

OUTSIDE = ("192.0.2.1", 9)  # an address for documents: nobody has it
ASK = f"import socket; socket.create_connection({OUTSIDE!r}, 1)"


def test_no_connection_leaves_this_machine() -> None:
    with pytest.raises(OSError, match="tests use no network"):
        socket.create_connection(OUTSIDE, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, pytest.raises(OSError, match="no network"):
        datagrams.sendto(b"", OUTSIDE)
    for look_up in (lambda: socket.getaddrinfo("example.org", 80), lambda: socket.gethostbyname("example.org")):
        with pytest.raises(socket.gaierror, match="no network"):
            look_up()


def test_nor_one_of_a_process_that_a_test_starts() -> None:
    for command in ([sys.executable, "-c", ASK], [sys.executable, "-P", "-c", ASK]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "tests use no network" in done.stderr


def test_this_machine_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), 5).close()
        socket.create_connection(("localhost", server.getsockname()[1]), 5).close()


SWALLOWS = f"""
import subprocess, sys
from contextlib import suppress

def test_swallows():
    import socket
    with suppress(OSError):
        socket.getaddrinfo("telemetry.example", 443)

def test_starts_one_that_swallows():
    assert subprocess.run([sys.executable, "-c", "try:\\n    {ASK}\\nexcept OSError: pass"]).returncode == 0

def test_asks_nobody():
    import socket
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.connect(("8.8.8.8", 53))  # sends nothing
"""


@pytest.mark.parametrize(("chosen", "processes"), [("swallow", 2), ("asks_nobody", 0)])
def test_who_swallows_the_refusal_fails_the_session(tmp_path: Path, chosen: str, processes: int) -> None:
    (tmp_path / "test_swallowing.py").write_text(SWALLOWS)
    (tmp_path / "refusals").mkdir()
    words = ["-p", "refusals", "-p", "no:cacheprovider", "-n", str(processes), "-k", chosen, "test_swallowing.py"]
    places = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={**os.environ, "PYTHONPATH": places, FOLDER: str(tmp_path / "refusals")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    fails = chosen == "swallow"
    assert done.returncode == (1 if fails else 0), done.stdout + done.stderr
    assert " failed" not in done.stdout
    assert ("test_swallowing.py::test_swallows asked for telemetry.example" in done.stdout) == fails
    assert ("test_starts_one_that_swallows asked for 192.0.2.1" in done.stdout) == fails
