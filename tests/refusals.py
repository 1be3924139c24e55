"""Fail a session in which a test asked for another machine, although whoever asked may have swallowed the refusal.

conftest.py takes its hooks from here. Each process writes into a folder of the session (no_network/sitecustomize.py).
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

FOLDER = "FINESIGHT_TEST_REFUSALS"
ON_PURPOSE = {  # tests, by how their names begin -> the hosts that they ask for, to see what happens
    "tests/test_no_network.py": {"192.0.2.1", "example.org"},
    "tests/cli/test_vision_transformer.py::test_the_sizes_that_the_gentle_preset_chooses": {"huggingface.co"},
    "tests/server/test_server_access.py::test_a_port_that_is_taken": {"no-such-host.invalid"},
}
WHOSE_CLOUD = {"169.254.169.254", "metadata.google.internal"}  # gcsfs and Ray ask once a process in whose cloud it is

if FOLDER not in os.environ:  # the workers of pytest-xdist share the folder of the process that started them
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="finesight-refusals-")
    atexit.register(shutil.rmtree, os.environ[FOLDER], ignore_errors=True)


def unexpected() -> list[str]:
    """Which test asked for which host, but for those that mean to."""
    lines = {line for file in Path(os.environ[FOLDER]).iterdir() for line in file.read_text().splitlines()}
    found = []
    for test, _, host in (line.partition("\t") for line in sorted(lines)):
        on_purpose = any(test.startswith(begin) and host in hosts for begin, hosts in ON_PURPOSE.items())
        if not on_purpose and host not in WHOSE_CLOUD:
            found.append(f"{test or 'a process of no test'} asked for {host}")
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput") and unexpected():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if found := unexpected():
        terminalreporter.section("no network use unless asked", red=True, bold=True)
        for line in found:
            terminalreporter.line(line)
