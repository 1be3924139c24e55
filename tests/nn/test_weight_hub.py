"""``hf-hub:NAME`` and ``timm/NAME``: from the cache, from a hub that answers, and without one."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from finesight.errors import FineSightError
from finesight.nn.weights import is_caffe_style, load_weights
from finesight.training.config import TrainConfig

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make() -> nn.Module:
    return timm.create_model("test_vit", pretrained=False, num_classes=0)


def donor_state() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {name: torch.rand(tensor.shape, generator=generator) for name, tensor in make().state_dict().items()}


def assert_holds(model: nn.Module, state: dict[str, Tensor]) -> None:
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def write_sharded(state: dict[str, Tensor], folder: Path) -> None:
    names = list(state)
    places = {name: f"model-{1 + number % 2:05d}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: state[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client, which may not use the network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def snapshot(cache: Path, repository: str) -> Path:
    root = cache / f"models--{repository.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    folder = root / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("weights", "repository"),
    [
        ("hf-hub:someone/network", "someone/network"),
        (f"hf-hub:someone/network@{COMMIT}", "someone/network"),
        ("timm/test_vit.r160_in1k", "timm/test_vit.r160_in1k"),
        ("timm/test_vit", "timm/test_vit.r160_in1k"),
    ],
)
def test_from_the_cache_without_a_network(cache: Path, weights: str, repository: str) -> None:
    state, model = donor_state(), make()
    save_file(state, snapshot(cache, repository) / "model.safetensors")
    assert load_weights(model, weights).startswith(f"{len(state)} of {len(state)} tensors matched (timm names)")
    assert_holds(model, state)


def test_shards_in_the_cache_are_used_when_they_are_all_there(cache: Path) -> None:
    state, model = donor_state(), make()
    folder = snapshot(cache, "someone/network")
    write_sharded(state, folder)
    load_weights(model, "hf-hub:someone/network")
    assert_holds(model, state)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FineSightError, match="could not be fetched"):
        load_weights(model, "hf-hub:someone/network")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("hf-hub:someone/network", r"'hf-hub:someone/network' could not be fetched \(.*someone/network/resolve/main/"),
        ("timm/test_vit", r"could not be fetched .*timm/test_vit\.r160_in1k/resolve.*--weights FILE"),
        ("hf-hub:a/b/c", "not a name of the hub"),
        ("hf-hub:", "not a name of the hub"),
        ("timm/no_such_network", "timm has no pretrained weights for 'no_such_network'"),
        ("timm/resnet18.no_such_tag", r"timm has no pretrained weights for 'resnet18\.no_such_tag'"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_without_a_network_the_error_comes_soon(weights: str, message: str) -> None:
    start = time.monotonic()
    with pytest.raises(FineSightError, match=message):
        load_weights(nn.Identity(), weights, hub_seconds=5)
    assert time.monotonic() - start < 60


@pytest.mark.usefixtures("cache")
def test_a_name_of_a_hub_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_caffe_style("hf-hub:someone/network")
    monkeypatch.chdir(tmp_path)

    def absolute(weights: str) -> str:
        config = TrainConfig.model_validate({"data": "images", "method": "moco-v2", "backbone": {"weights": weights}})
        return config.with_absolute_paths().backbone.weights

    assert absolute("hf-hub:someone/network") == "hf-hub:someone/network"
    assert absolute("timm/test_vit") == "timm/test_vit"
    assert absolute("w.pth") == str(tmp_path / "w.pth")
    (tmp_path / "timm" / "test_vit").mkdir(parents=True)
    assert absolute("timm/test_vit") == str(tmp_path / "timm" / "test_vit")  # a folder of that name goes first


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves a folder as the repository someone/network."""

    folder: Path

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def _answer(self) -> bytes:
        owner, name, *_, file = self.path.strip("/").split("/")
        path = self.folder / file
        known = (owner, name) == ("someone", "network")
        content = path.read_bytes() if known and path.is_file() else b""
        self.send_response(200 if content else 404)
        self.send_header("X-Repo-Commit", COMMIT)
        if content:
            self.send_header("ETag", f'"{file}"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return content

    def log_message(self, *_: Any) -> None:
        pass


FETCH = """
import sys, timm, torch
from safetensors.torch import save_file
from finesight.errors import FineSightError
from finesight.nn.weights import load_weights
for weights in sys.argv[2:]:
    model = timm.create_model("test_vit", pretrained=False, num_classes=0)
    try:
        print(load_weights(model, weights, hub_seconds=60))
        save_file(model.state_dict(), sys.argv[1])
    except FineSightError as error:
        print(error)
"""


@pytest.mark.slow
def test_shards_are_fetched_from_a_hub_that_answers(tmp_path: Path) -> None:
    """In a process of its own, because the hub's address is read at import."""
    state = donor_state()
    served, out = tmp_path / "served", tmp_path / "out.safetensors"
    served.mkdir()
    write_sharded(state, served)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Hub,), {"folder": served}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        environment = {
            **os.environ,
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path / "home"),
            "NO_PROXY": "127.0.0.1",
        }
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
            environment.pop(name, None)
        command = [sys.executable, "-c", FETCH, str(out), "hf-hub:someone/network", "hf-hub:someone/else"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    finally:
        server.shutdown()
        server.server_close()
    report, error = done.stdout.splitlines()
    assert report == f"{len(state)} of {len(state)} tensors matched (timm names)"
    assert "'hf-hub:someone/else' could not be fetched" in error
    model = make()
    load_weights(model, out)
    assert_holds(model, state)
