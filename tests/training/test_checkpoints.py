"""Checkpoints: whole or not there, two kept, and nothing in them is run when they are read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from finesight.errors import FineSightError
from finesight.training.checkpoints import checkpoints, load_checkpoint, remove_rows, save_checkpoint, save_rows


def state(step: int) -> dict[str, object]:
    return {"module": {"w": torch.full((3,), float(step))}, "optimizer": {"count": step}}


def test_the_last_two_are_kept_and_the_newest_read(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "checkpoints"
    assert load_checkpoint(folder) is None
    for step in (5, 99_999, 100_000, 123_456_789):  # the names sort as the numbers do
        file = save_checkpoint(folder, step, state(step))
        assert file == checkpoints(folder)[-1]
    assert [file.name for file in checkpoints(folder)] == ["step-00100000.pt", "step-123456789.pt"]
    found = load_checkpoint(folder)
    assert found is not None
    file, loaded = found
    assert file.name == "step-123456789.pt"
    assert loaded["optimizer"]["count"] == 123_456_789
    assert torch.equal(loaded["module"]["w"], torch.full((3,), 123_456_789.0))
    assert set(os.listdir(folder)) == {file.name for file in checkpoints(folder)}, "nothing else is left"


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "zeros", "directory"])
def test_a_damaged_one_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    newest = save_checkpoint(tmp_path, 2, state(2))
    whole = newest.read_bytes()
    if damage == "directory":
        newest.unlink()
        newest.mkdir()
    else:
        newest.write_bytes(
            {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"hello", "zeros": bytes(len(whole))}[damage]
        )
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found[0].name == "step-00000001.pt"
    assert found[1]["optimizer"] == {"count": 1}


def test_none_can_be_read(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, state(step)).write_bytes(b"no")
    with pytest.raises(FineSightError, match=r"can be read.*--restart"):
        load_checkpoint(tmp_path)


class Trap:
    """Unpickled, it would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, 1, state(1))
    torch.save({"module": Trap(mark)}, folder / "step-00000002.pt")
    (folder / "step-00000003.pt").write_bytes(pickle.dumps(Trap(mark)))
    found = load_checkpoint(folder)
    assert found is not None
    assert found[0].name == "step-00000001.pt"
    assert not mark.exists()
    pickle.loads((folder / "step-00000003.pt").read_bytes())
    assert mark.exists(), "the trap works"


def test_a_failed_write_leaves_the_older_ones(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, state(1))
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        save_checkpoint(tmp_path, 2, {"module": lambda: None})
    assert [file.name for file in checkpoints(tmp_path)] == ["step-00000001.pt"]
    save_checkpoint(tmp_path, 2, state(2))
    assert load_checkpoint(tmp_path) is not None


# --- what is known of each image --------------------------------------------------------------------------------------


def test_rows_of_images_come_back_with_the_checkpoint_that_names_them(tmp_path: Path) -> None:
    maps, images = torch.randint(0, 255, (3, 4, 4), dtype=torch.uint8), torch.tensor([5, -7, 2**62])
    first, second = (save_rows(tmp_path, n, {"maps": maps + n, "images": images}) for n in (1, 5))
    for step, name in ((1, first), (2, first), (5, second)):
        save_checkpoint(tmp_path, step, {**state(step), "rows": name})
    remove_rows(tmp_path, (first, second))
    newest = load_checkpoint(tmp_path)
    assert newest is not None
    assert torch.equal(newest[1]["module"]["hook.maps"], maps + 5)
    assert torch.equal(newest[1]["images"], images)
    (tmp_path / second).write_bytes(b"PK")  # destroyed: the checkpoint that needs it cannot be used
    older = load_checkpoint(tmp_path)
    assert older is not None
    assert older[0].name == "step-00000002.pt"
    assert torch.equal(older[1]["module"]["hook.maps"], maps + 1)
    (tmp_path / ".rows-00000009.npz.tmp").touch()
    remove_rows(tmp_path, [first])
    assert sorted(file.name for file in tmp_path.iterdir()) == [first, "step-00000002.pt", "step-00000005.pt"]
