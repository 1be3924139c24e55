"""The files for Docker and systemd: checked by the tools made for them, and against the command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from finesight.cli.main import app
from serving import Serving, make_gallery
from wheels import ROOT

DOCKER = ROOT / "docker"
TOOLS = Path(sys.executable).parent


def tool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


def options_of(command: str) -> set[str]:
    return set(
        re.findall(r"--[a-z][a-z-]+", CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output)
    )


def require(name: str) -> Path:
    found = shutil.which(str(TOOLS / name)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here")
    return Path(found)


def test_the_dockerfile() -> None:
    done = tool(require("hadolint"), "--no-color", DOCKER / "Dockerfile")
    assert done.returncode == 0, done.stdout
    text = (DOCKER / "Dockerfile").read_text()
    for source in re.findall(r"^COPY (?!--from)(\S+)", text, re.M):
        assert (ROOT / source).exists()
        assert f"!{source}" in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert "\nUSER 10001\n" in text  # not root


def test_the_health_check_of_the_image_asks_a_server_that_wants_a_token(tmp_path: Path) -> None:
    text = (DOCKER / "Dockerfile").read_text()
    health, start = (json.loads(words) for words in re.findall(r"^ *CMD (\[.*\])$", text, re.M))
    assert health[0] == "python"
    code = health[2]
    assert code.count("127.0.0.1:8000/") == 1

    def check(port: int) -> subprocess.CompletedProcess[str]:
        return tool(sys.executable, health[1], code.replace(":8000/", f":{port}/"))

    words = [str(make_gallery(tmp_path).index) if word == "/data/index" else word for word in start]
    with Serving(*words, "--port", "0", FINESIGHT_TOKEN="secret") as server:
        port = httpx.URL(server.url).port
        assert port is not None
        assert httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=60).status_code == 401  # it does want one
        assert (done := check(port)).returncode == 0, done.stderr
        server.stop()
        assert check(port).returncode != 0


def test_a_linter_that_finds_nothing_would_be_no_check(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN pip install numpy\nUSER root\n")
    assert tool(require("hadolint"), tmp_path / "Dockerfile").returncode != 0
    (tmp_path / "compose.yaml").write_text("services:\n  one:\n    imege: x\n")
    assert tool(
        require("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", tmp_path / "compose.yaml"
    ).returncode


def test_the_compose_file() -> None:
    done = tool(require("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml")
    assert done.returncode == 0, done.stdout
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        if service["image"] != "finesight":
            assert re.search(r":v?[\w.-]*\d[\w.-]*$", service["image"]), f"{name} has no version"
            assert "ports" not in service  # only the server is reached from outside
        for other in service.get("depends_on", {}):
            assert other in services
    for name, command in (("server", "serve"), ("index", "index")):
        words = services[name]["command"]
        assert words[0] == command
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options_of(command)


@pytest.mark.slow
def test_the_image_is_built_where_a_docker_daemon_runs() -> None:
    docker = require("docker")
    if tool(docker, "info").returncode:
        pytest.skip("no Docker daemon runs here")
    assert tool(docker, "build", "-f", DOCKER / "Dockerfile", "-t", "finesight-test", ROOT).returncode == 0
    assert tool(docker, "run", "--rm", "finesight-test", "doctor").returncode == 0


def test_the_systemd_unit(tmp_path: Path) -> None:
    text = (DOCKER / "finesight.service").read_text()
    start = re.search(r"^ExecStart=(\S+) (.*)$", text, re.M)
    assert start is not None
    assert {word for word in start[2].split() if word.startswith("--")} <= options_of("serve")
    analyze = require("systemd-analyze")
    unit = tmp_path / "finesight.service"  # with a command that is here
    unit.write_text(text.replace(start[1], shutil.which("true") or "/bin/true"))
    done = tool(analyze, "verify", unit)
    assert done.returncode == 0, done.stderr
    assert "finesight.service" not in done.stderr, done.stderr  # an unknown setting is a warning only
    if (graded := tool(analyze, "security", "--offline=true", "--threshold=25", unit)).returncode:
        assert "nrecognized option" in graded.stderr or "nknown" in graded.stderr, graded.stdout  # an older systemd
