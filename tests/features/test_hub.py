"""Encoders in a folder as on the Hugging Face hub, and a real push and pull by a small server of this machine."""

from __future__ import annotations

import base64
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import finesight
from finesight.errors import FineSightError
from finesight.features.encoder import Encoder
from processes import command, environment, refused, succeeded

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_folder_with_a_card_that_tells_of_the_run(scored: Any, tmp_path: Path) -> None:
    run, _ = scored
    done = succeeded(command("push", run, "someone/birds", "--dry-run", tmp_path / "out"))
    assert "add a license" in done.out
    assert sorted(os.listdir(tmp_path / "out")) == ["README.md", "encoder.json", "encoder.safetensors"]
    card = (tmp_path / "out" / "README.md").read_text()
    _, header, body = card.split("---\n", 2)
    facts = yaml.safe_load(header)
    assert facts["library_name"] == "finesight"
    assert "license" not in facts, "it is left to the user"
    scores = json.loads((run / "evaluation.json").read_text())
    for word in ("test_resnet", "lcr", "| trained on | birds |", 'finesight.load("hf-hub:someone/birds")'):
        assert word in body, word
    assert f"| rank-1 | {scores['retrieval']['rank1']:.1f} % |" in body
    assert json.loads((run / "verdict.json").read_text())["verdict"] in body
    assert str(run.parent) not in card, "no path of this machine"
    encoder, again = finesight.load(run), Encoder.from_pretrained(tmp_path / "out")
    views = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.embed(views), encoder.embed(views))
    again.save_pretrained(tmp_path / "out")
    assert "It has not been scored" in (tmp_path / "out" / "README.md").read_text()


def test_what_is_no_repository_is_a_sentence(lcr: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    refused(command("push", lcr, "a/b", "--dry-run", tmp_path / "mine"), "holds no encoder: give a new folder")
    refused(command("push", lcr, "birds"), "OWNER/NAME")
    for name in ("birds", tmp_path / "nothing", "a/b/c"):
        with pytest.raises(FineSightError, match="neither a folder nor a repository"):
            Encoder.from_pretrained(name)
    with pytest.raises(FineSightError, match="no revision"):
        Encoder.from_pretrained(lcr, revision="v1")


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as pushing and fetching a few small files asks for."""

    files: dict[str, bytes] = {}  # noqa: RUF012

    def log_message(self, *args: Any) -> None: ...

    def answer(self, content: bytes = b"{}", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("/repos/create"):
            return self.answer(json.dumps({"url": f"http://{self.headers['Host']}/a/b"}).encode())
        if self.path.endswith("/validate-yaml"):  # of the card
            return self.answer(b'{"errors": [], "warnings": []}', Content_Type="application/json")
        if "/preupload/" in self.path:
            asked = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            return self.answer(json.dumps({"files": asked}).encode(), Content_Type="application/json")
        if "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            made = {"commitUrl": f"http://{self.headers['Host']}/a/b/commit/{COMMIT}", "commitOid": COMMIT}
            return self.answer(json.dumps({**made, "pullRequestUrl": None}).encode(), Content_Type="application/json")
        return self.answer(status=404)

    def do_GET(self) -> None:
        if found := re.match(r"/a/b/resolve/[^/]+/(.+)", self.path):
            content = self.files.get(found[1].partition("?")[0])
            return self.answer(status=404) if content is None else self.answer(content, ETag=f'"{hash(content)}"')
        if self.path.startswith("/api/models/a/b"):
            beside = [{"rfilename": name} for name in self.files]
            facts = {"id": "a/b", "sha": COMMIT, "siblings": beside, "private": False, "tags": [], "downloads": 0}
            if "/tree/" in self.path:
                files = [{"type": "file", "path": k, "size": len(v), "oid": "0"} for k, v in self.files.items()]
                return self.answer(json.dumps(files).encode(), Content_Type="application/json")
            return self.answer(json.dumps(facts).encode(), Content_Type="application/json")
        return self.answer(status=404)

    do_HEAD = do_GET


@pytest.fixture
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_pushed_and_fetched_again_also_when_the_hub_is_gone(hub: str, lcr: Path, tmp_path: Path) -> None:
    """In processes of their own: the hub's client reads its settings when it is imported."""
    own = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_x", "HF_HUB_DISABLE_XET": "1"}

    def run(code: str, **env: str) -> str:
        program = [sys.executable, "-c", f"import sys, finesight, torch\n{code}", str(lcr)]
        done = subprocess.run(program, capture_output=True, text=True, env=environment(**{**own, **env}), check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    fetched = 'f = finesight.load("hf-hub:a/b").embed(torch.ones(1, 3, 32, 32)); print(f.double().sum().item())'
    sent = 'e = finesight.load(sys.argv[1]); e.push_to_hub("a/b", run=sys.argv[1])\n'
    expected = run(sent + "print(e.embed(torch.ones(1, 3, 32, 32)).double().sum().item())")
    assert {"README.md", "encoder.json", "encoder.safetensors"} <= set(Hub.files)
    assert run(fetched) == expected
    assert run(fetched, HF_ENDPOINT="http://127.0.0.1:9") == expected, "from the local copy"
    never = 'try: finesight.Encoder.from_pretrained("a/none")\nexcept finesight.FineSightError as e: print(e)'
    assert "could not be fetched from the hub" in run(never)
