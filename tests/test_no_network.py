"""The tests themselves reach nothing but this machine, nor do the processes that they start."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

OUTSIDE = ("192.0.2.1", 9)  # an address for documents: nobody has it
ASK = f"import socket; socket.create_connection({OUTSIDE!r}, 1)"


def test_no_connection_leaves_this_machine() -> None:
    with pytest.raises(OSError, match="tests use no network"):
        socket.create_connection(OUTSIDE, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, pytest.raises(OSError, match="no network"):
        datagrams.sendto(b"", OUTSIDE)
    with pytest.raises(socket.gaierror, match="no network"):
        socket.getaddrinfo("example.org", 80)


def test_nor_one_of_a_process_that_a_test_starts() -> None:
    for command in ([sys.executable, "-c", ASK], [sys.executable, "-P", "-c", ASK]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "tests use no network" in done.stderr


def test_this_machine_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), 5).close()
        socket.create_connection(("localhost", server.getsockname()[1]), 5).close()
