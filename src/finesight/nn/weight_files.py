"""Reads weight files as tensors and nothing else: safetensors, pickles in torch's ``weights_only`` mode, shards.

Nothing in a file is run, so one from anywhere can be tried.
"""

import argparse
import json
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from finesight.errors import FineSightError, first_line

SUFFIXES = (".safetensors", ".pth", ".pt", ".tar", ".bin")
INDEX = ".index.json"  # names the shards of a large model, as Hugging Face saves it
# what a folder or a repository of the hub is searched for, in this order
FOLDER_FILES = (
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
    "open_clip_pytorch_model.bin",
)


def local_file(file: str | Path) -> Path:
    """Return the path of a weight file, or of the one that a folder has, or raise ``FineSightError``."""
    path = Path(file).expanduser()
    if path.is_dir():
        return _file_of_folder(path)
    if not path.is_file():
        raise FineSightError(
            f"weights '{file}': no such file. Give `imagenet`, `random`, a weight file or its folder, `hf-hub:NAME`, "
            "or `timm/NAME`."
        )
    if not path.name.lower().endswith((*SUFFIXES, INDEX)):
        raise FineSightError(
            f"weights '{file}': '{path.suffix}' is not a weight file FineSight reads. It reads {', '.join(SUFFIXES)} "
            f"and {INDEX}."
        )
    return path


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by their names.

    Those of a checkpoint are in its ``state_dict`` or ``model``. Where it has several networks instead, such as
    ``student`` and ``teacher``, the name of the network comes before the names of its tensors.
    """
    if path.name.lower().endswith(INDEX):
        return {name: tensor for shard in shards(path) for name, tensor in read_tensors(path.parent / shard).items()}
    if path.suffix.lower() == ".safetensors":
        with open_safetensors(path) as opened:
            content = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a dict)
    else:
        content = _read_pickle(path)
    state = content
    while isinstance(state, dict):
        inner = next((state[key] for key in ("state_dict", "model") if isinstance(state.get(key), dict)), None)
        if inner is None:
            break
        state = inner
    tensors = _tensors(state)
    if isinstance(state, dict):
        tensors |= {f"{key}.{name}": tensor for key, part in state.items() for name, tensor in _tensors(part).items()}
    if not tensors:
        held = some([str(key) for key in content]) if isinstance(content, dict) else type(content).__name__
        raise FineSightError(f"weights '{path}': no weight tensors in it (found: {held}).")
    return tensors


def shards(index: Path) -> list[str]:
    """Return the names of the files that an index points to, which lie beside it."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FineSightError(
            f"weights '{index}': not an index of weight files ({first_line(error)}). Is the download complete?"
        ) from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.lower().endswith(SUFFIXES):
            raise FineSightError(f"weights '{index}': it points to '{name}', which is no weight file beside it.")
    return names


def open_safetensors(path: Path) -> Any:
    """Return the opened safetensors file, or raise ``FineSightError``."""
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise FineSightError(
            f"weights '{path}': not a readable safetensors file ({first_line(error)}). Is the download complete?"
        ) from error


def some(names: list[str], count: int = 3) -> str:
    """Return the first names and how many there are."""
    more = f", … ({len(names)} in all)" if len(names) > count else ""
    return (", ".join(names[:count]) or "none") + more


def _file_of_folder(folder: Path) -> Path:
    found = [folder / name for name in FOLDER_FILES if (folder / name).is_file()]
    found = found or sorted(path for path in folder.iterdir() if path.name.lower().endswith(SUFFIXES))
    if not found:
        raise FineSightError(
            f"weights '{folder}': a folder without a weight file ({', '.join(SUFFIXES)}). Give the file itself."
        )
    if len(found) > 1 and found[0].name not in FOLDER_FILES:
        names = some([path.name for path in found])
        raise FineSightError(f"weights '{folder}': a folder with several weight files ({names}). Give one of them.")
    return found[0]


def _tensors(content: Any) -> dict[str, Tensor]:
    if not isinstance(content, dict):
        return {}
    return {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}


def _read_pickle(path: Path) -> Any:
    try:
        # checkpoints of DINO, MAE and timm hold the options of their command line: a bag of names, which runs nothing
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file can fail in any way
        reason = first_line(error)
        if isinstance(error, pickle.UnpicklingError):  # torch's own message advises to trust the file
            wanted = re.search(r"GLOBAL (\S+)", str(error))
            reason = f"it asks for `{wanted[1]}`" if wanted else "not tensors alone"
        raise FineSightError(
            f"weights '{path}': not a plain weight file ({reason}). Nothing in it was run. "
            f"Save only the state dict, best as .safetensors."
        ) from error
