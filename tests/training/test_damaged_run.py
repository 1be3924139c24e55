"""A run with damaged checkpoints or settings: the older good checkpoint is used, or a sentence says what is wrong."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from finesight.errors import FineSightError
from finesight.training.checkpoints import checkpoints, load_checkpoint
from finesight.training.config_file import read_yaml
from processes import TINY, command, refused, succeeded

WEIGHTS = "encoder/encoder.safetensors"


@pytest.fixture(scope="module")
def unfinished(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of its steps 9 and 10 whose encoder is not saved yet, as if killed in that moment."""
    run = tmp_path_factory.mktemp("runs") / "unfinished"
    succeeded(command("train", "--data", birds, "--out", run, "--epochs", "2", "--checkpoint-minutes", "0", *TINY))
    shutil.rmtree(run / "encoder")
    return run


def flip(file: Path) -> None:
    """One bit in the middle of the largest tensor: the file is well-formed, and PyTorch reads it without a word."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)
    torch.load(file, weights_only=True)


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        state = torch.load(file, weights_only=True)
        torch.save(change(state) or state, file)

    return damage


def first(table: dict[Any, Any]) -> Any:
    return next(key for key, value in table.items() if isinstance(value, torch.Tensor) and value.ndim > 1)


def reshape_momentum(state: dict[str, Any]) -> None:
    for kept in state["optimizer"]["state"].values():
        for name, value in kept.items():
            if isinstance(value, torch.Tensor) and value.ndim:
                kept[name] = torch.zeros(7)


DAMAGES = {
    "bit": flip,
    "empty-table": edit(lambda state: {"nothing": 1}),
    "list": edit(lambda state: [1, 2]),
    "no-optimizer": edit(lambda state: state.pop("optimizer") and None),
    "numbers-for-tables": edit(lambda state: {"module": 5, "optimizer": 6, "precision": 7}),
    "a-tensor-less": edit(lambda state: state["module"].pop(first(state["module"])) is None),
    "other-shape": edit(lambda state: state["module"].update({first(state["module"]): torch.zeros(3)})),
    "not-numbers": edit(lambda state: state["module"][first(state["module"])].fill_(float("nan")) * 0 is None),
    "other-groups": edit(lambda state: state["optimizer"]["param_groups"].clear()),
    "other-momentum": edit(reshape_momentum),
    "other-step": edit(lambda state: state["module"]["steps"].fill_(3) * 0 is None),
    "rows-that-are-not-there": edit(lambda state: {**state, "rows": "../../rows-1.npz"}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_older_good_checkpoint_is_used(
    unfinished: Path, lcr: Path, birds: Path, tmp_path: Path, damage: str
) -> None:
    run = Path(shutil.copytree(unfinished, tmp_path / "run"))
    newest = checkpoints(run / "checkpoints")[-1]
    DAMAGES[damage](newest)
    orphan = run / "checkpoints" / ".step-00000010.pt.4711.tmp.pt"
    orphan.write_bytes(bytes(1000))
    (run / ".encoder.4711.tmp").mkdir()
    train = ("train", "--data", birds, "--out", run, "--epochs", "2", "--checkpoint-minutes", "60", *TINY)
    done = succeeded(command(*train))
    assert newest.name in done.err
    assert "Continuing at step 9 of 10" in done.err
    assert (run / WEIGHTS).read_bytes() == (lcr / WEIGHTS).read_bytes()
    assert not [path.name for path in run.rglob(".*") if "tmp" in path.name]


def test_none_that_fits(unfinished: Path, birds: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(unfinished, tmp_path / "run"))
    for file in checkpoints(run / "checkpoints"):
        DAMAGES["other-shape"](file)
    train = ("train", "--data", birds, "--out", run, "--epochs", "2", *TINY)
    refused(command(*train), "No checkpoint in", "--restart")


def test_every_flipped_byte_of_a_checkpoint_is_found(unfinished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(unfinished / "checkpoints", tmp_path / "checkpoints"))
    newest = checkpoints(folder)[-1]
    whole, generator = newest.read_bytes(), torch.Generator().manual_seed(0)
    for _ in range(30):
        altered = bytearray(whole)
        altered[int(torch.randint(len(whole), (), generator=generator))] ^= 1
        newest.write_bytes(altered)
        found = load_checkpoint(folder)
        assert found is not None
        if found[0] == newest:  # the byte is padding between two parts, which nothing reads
            same(found[1], _read(whole, tmp_path))


def _read(content: bytes, folder: Path) -> dict[str, Any]:
    file = folder / "whole.pt"
    file.write_bytes(content)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


def same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    else:
        assert one == other or one != one


# --- settings ---------------------------------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "aliases": BOMB,
    "itself": "a: &a [*a]\ndata: *a\n",
    "nested": "data: " + "[" * 20_000,
    "nested-tables": "{a: " * 20_000,
    "large": "data: " + "x" * 200_000,
    "tags": "data: !!python/object/apply:os.system ['touch /tmp/never']\n",
    "bytes": "data: \x00\x01",
    "number": "5",
    "dates": "data: 2026-99-99\n",
    "keys": "? [1, 2]\n: 3\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_settings_are_a_sentence_at_once(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HOSTILE[name])
    start = time.process_time()
    with pytest.raises(FineSightError):
        read_yaml(file)
    assert time.process_time() - start < 5


def test_a_config_may_name_a_part_twice(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("views: &v {flip: 0.1}\nother: *v\n")
    assert read_yaml(file)["other"] == {"flip": 0.1}
