import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from finesight.errors import FineSightError
from finesight.nn.weights import imagenet_model, is_caffe_style, load_weights

State = dict[str, Tensor]


def fresh(name: str = "resnet18") -> nn.Module:
    return timm.create_model(name, pretrained=False, num_classes=0)


def donor_state(name: str = "resnet18") -> State:
    """Every tensor random, batch norms too, so that any tensor left unloaded shows."""
    state = timm.create_model(name, pretrained=False).state_dict()
    generator = torch.Generator().manual_seed(7)
    return {
        k: torch.rand(v.shape, generator=generator) if v.is_floating_point() else torch.tensor(41)
        for k, v in state.items()
    }


def assert_holds(model: nn.Module, state: State) -> None:
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, state[name].to(tensor.dtype), rtol=0, atol=0, msg=name)


def test_torchvision_pth(tmp_path: Path) -> None:
    donor = torchvision.models.resnet18()
    torch.save(donor.state_dict(), tmp_path / "resnet18.pth")
    model = fresh()
    assert load_weights(model, tmp_path / "resnet18.pth") == "100 of 100 tensors matched (torchvision names)"
    images = torch.randn(2, 3, 64, 64)
    donor.fc = nn.Identity()
    torch.testing.assert_close(model.eval()(images), donor.eval()(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["test_convnext", "test_efficientnet", "regnetx_002", "resnet10t"])
def test_timm_safetensors(tmp_path: Path, name: str) -> None:
    state = donor_state(name)
    save_file(state, tmp_path / "w.safetensors")
    model = fresh(name)
    report = load_weights(model, tmp_path / "w.safetensors")
    wanted = sum(not key.endswith("num_batches_tracked") for key in model.state_dict())
    assert report == f"{wanted} of {wanted} tensors matched (timm names)"
    assert_holds(model, state)


@pytest.mark.parametrize("suffix", [".pth.tar", ".safetensors"])
def test_moco_release_takes_the_query_encoder(tmp_path: Path, suffix: str) -> None:
    """Safetensors sorts its keys, so the key encoder comes first there."""
    query = donor_state()
    head = {"fc.0.weight": torch.rand(512, 512), "fc.2.weight": torch.rand(128, 512)}
    body = {k: v for k, v in query.items() if not k.startswith("fc.")}
    moco = {f"module.encoder_q.{k}": v for k, v in {**body, **head}.items()}
    moco |= {f"module.encoder_k.{k}": v + 1 for k, v in {**body, **head}.items()}
    moco["module.queue"] = torch.rand(128, 64)
    path = tmp_path / f"moco{suffix}"
    if suffix == ".safetensors":
        save_file(moco, path)
    else:
        content = {
            "epoch": 200,
            "arch": "resnet18",
            "state_dict": moco,
            "optimizer": {"param_groups": [{"lr": 0.1}]},
        }
        torch.save(content, path)
    model = fresh()
    report, _, unused = load_weights(model, path).partition("; not used: ")
    assert report == "100 of 100 tensors matched (MoCo names)"
    assert set(unused.split(", ")) == {"module.encoder_k (100 tensors)", "module.queue"}
    assert_holds(model, query)


@pytest.mark.parametrize(
    "prefix",
    ["module.", "backbone.", "module.encoder.", "model.", "backbone.model."],
)
def test_prefixes_are_taken_off(tmp_path: Path, prefix: str) -> None:
    state = donor_state()
    torch.save({"model": {prefix + k: v for k, v in state.items()}}, tmp_path / "w.pt")
    model = fresh()
    report = load_weights(model, tmp_path / "w.pt")
    assert report.startswith("100 of 100 tensors matched")
    assert f"'{prefix}'" in report
    assert_holds(model, state)


def test_half_precision_is_cast_and_batch_counters_are_not_required(tmp_path: Path) -> None:
    state = {k: v.half() for k, v in donor_state().items() if not k.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "w.safetensors")
    model = fresh()
    assert load_weights(model, tmp_path / "w.safetensors").startswith("100 of 100")
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, state[name].float()), name


def test_a_few_missing_tensors_are_named(tmp_path: Path) -> None:
    state = donor_state()
    del state["bn1.weight"], state["bn1.bias"]
    torch.save(state, tmp_path / "w.pth")
    report = load_weights(fresh(), tmp_path / "w.pth")
    assert report.startswith("98 of 100 tensors matched")
    assert "left random: bn1.weight, bn1.bias" in report


@pytest.mark.parametrize(("kept", "fine"), [(90, True), (89, False)])
def test_the_limit_is_ninety_percent(tmp_path: Path, kept: int, fine: bool) -> None:
    state = donor_state()
    names = [k for k in state if not k.startswith("fc.") and not k.endswith("num_batches_tracked")]
    torch.save({k: state[k] for k in names[:kept]}, tmp_path / "w.pth")
    model = fresh()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    if fine:
        assert load_weights(model, tmp_path / "w.pth").startswith("90 of 100")
        return
    with pytest.raises(FineSightError, match="only 89 of the model's 100 tensors"):
        load_weights(model, tmp_path / "w.pth")
    assert_holds(model, before)


def test_another_network_is_an_error_that_names_tensors(tmp_path: Path) -> None:
    torch.save(donor_state("convnext_atto"), tmp_path / "w.pth")
    with pytest.raises(FineSightError) as caught:
        load_weights(fresh(), tmp_path / "w.pth")
    message = str(caught.value)
    assert "only 0 of the model's 100 tensors" in message
    assert "Missing: conv1.weight" in message
    assert "Unexpected: stem.0.weight" in message
    assert "head." not in message


def test_a_deeper_network_of_the_same_family_is_an_error(tmp_path: Path) -> None:
    """It has every tensor of the model, and more."""
    torch.save(donor_state("resnet34"), tmp_path / "w.pth")
    with pytest.raises(FineSightError, match=r"no place for: layer1\.2\.conv1\.weight.*another backbone"):
        load_weights(fresh(), tmp_path / "w.pth")


def test_another_shape_is_an_error(tmp_path: Path) -> None:
    state = donor_state()
    state["layer1.0.conv1.weight"] = torch.rand(64, 64, 1, 1)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(FineSightError, match=r"1 tensors .* layer1.0.conv1.weight \(64, 64, 1, 1\) instead of"):
        load_weights(fresh(), tmp_path / "w.pth")


class Hostile:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, how: str) -> None:
    path, victim = tmp_path / "w.pth", tmp_path / "pwned"
    content = {"state_dict": donor_state(), "extra": Hostile(victim)}
    if how == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(FineSightError, match=r"not a plain weight file.*Nothing in it was run") as caught:
        load_weights(fresh(), path)
    assert not victim.exists()
    assert "weights_only" not in str(caught.value)
    if how == "torch":
        assert "posix.mkdir" in str(caught.value) or "nt.mkdir" in str(caught.value)
        torch.load(path, weights_only=False)  # the trap is live: an unsafe reader does spring it
        assert victim.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.pth", b"", "not a plain weight file"),
        ("w.pth", b"<html>404</html>", "not a plain weight file"),
        ("w.safetensors", b"", "not a readable safetensors file"),
        ("w.safetensors", b"<html>404</html>", "not a readable safetensors file"),
        ("w.onnx", b"x", "'.onnx' is not a weight file"),
        ("w", b"x", "is not a weight file"),
    ],
)
def test_files_that_are_no_weights(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FineSightError, match=message):
        load_weights(nn.Identity(), tmp_path / name)


@pytest.mark.parametrize("content", [{"epoch": 3, "lr": 0.1}, [1, 2], {"state_dict": {}}, {}])
def test_a_pickle_without_tensors(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(FineSightError, match="no weight tensors in it"):
        load_weights(nn.Identity(), tmp_path / "w.pth")


def test_a_missing_file_a_folder_and_half_a_download(tmp_path: Path) -> None:
    with pytest.raises(FineSightError, match=r"'imagnet': no such file\. Give `imagenet`, `random`"):
        load_weights(nn.Identity(), "imagnet")
    with pytest.raises(FineSightError, match="a folder"):
        load_weights(nn.Identity(), tmp_path)
    save_file({"a": torch.zeros(9999)}, tmp_path / "w.safetensors")
    torch.save({"a": torch.zeros(9999)}, tmp_path / "w.pth")
    for path in (tmp_path / "w.safetensors", tmp_path / "w.pth"):
        path.write_bytes(path.read_bytes()[:-5000])
        with pytest.raises(FineSightError, match=r"not a (readable safetensors|plain weight) file"):
            load_weights(nn.Identity(), path)


def test_caffe_style_is_read_from_the_metadata(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(1)}
    save_file(tensors, tmp_path / "caffe.safetensors", metadata={"style": "Caffe: stride 2 on the first 1x1"})
    save_file(tensors, tmp_path / "other.safetensors", metadata={"style": "torchvision"})
    save_file(tensors, tmp_path / "none.safetensors")
    torch.save(tensors, tmp_path / "pickle.pth")
    found = [is_caffe_style(tmp_path / n) for n in sorted(os.listdir(tmp_path))]
    assert found == [True, False, False, False]  # caffe, none, other, pickle


def test_a_model_without_pretrained_weights() -> None:
    without = next(n for n in timm.list_models("resnet*") if not timm.get_pretrained_cfg(n).has_weights)
    with pytest.raises(FineSightError, match=f"no pretrained weights for '{without}'.*--weights random"):
        imagenet_model(without)


HUB_SCRIPT = """
import time
from finesight.errors import FineSightError
from finesight.nn.weights import imagenet_model
while input():
    start = time.monotonic()
    try:
        imagenet_model("resnet18", hub_seconds=2, num_classes=0)
    except FineSightError as error:
        print(error, flush=True)
    print(time.monotonic() - start, flush=True)
"""


@pytest.mark.slow
def test_a_dead_hub_fails_fast_and_names_the_ways_out(tmp_path: Path) -> None:
    """In a process of its own, because the hub's address is read at import. It refuses first, then never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        hub = f"http://127.0.0.1:{server.getsockname()[1]}"
        environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
            environment.pop(name, None)
        command = [sys.executable, "-c", HUB_SCRIPT]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for listening in (False, True):
                if listening:
                    server.listen()
                process.stdin.write("again\n")
                process.stdin.flush()
                message, seconds = process.stdout.readline(), process.stdout.readline()
                assert "ImageNet weights of 'resnet18' could not be fetched" in message
                assert hub in message
                assert message.index("/resnet18.a1_in1k/resolve/main/model.safetensors") < message.index(
                    "--weights FILE"
                )
                assert message.index("--weights FILE") < message.index("--weights random is for training from nothing")
                assert float(seconds) < 60
            process.stdin.write("\n")
