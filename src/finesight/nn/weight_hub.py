"""Weights from the hubs of timm and Hugging Face: asked only when the user names them, and never for long."""

import threading
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import hf_hub_download, hf_hub_url, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import get_session  # type: ignore[attr-defined]
from torch import nn

from finesight.errors import FineSightError, first_line
from finesight.nn.backbone_config import HUB_PREFIX, TIMM_PREFIX
from finesight.nn.weight_files import FOLDER_FILES, INDEX, SUFFIXES, shards


def imagenet_model(name: str, *, hub_seconds: float = 10.0, **options: Any) -> nn.Module:
    """Return the timm model with its pretrained weights; fail after ``hub_seconds`` when the hub is out of reach."""
    source = _timm_source(name)
    reason = None if _is_cached(source) else _hub_problem(_url(source), hub_seconds)
    if reason is None:
        try:
            model: nn.Module = timm.create_model(name, pretrained=True, **options)
            return model
        except Exception as error:  # whatever the hub's client raises, the user's way out is the same
            reason = first_line(error)
    raise FineSightError(
        f"the ImageNet weights of '{name}' could not be fetched from the hub ({reason}). Without a connection, get "
        f"{_url(source)} on another machine, copy the file here and give --weights FILE; any file "
        f"({', '.join(SUFFIXES)}) with torchvision's or timm's names for this network will do. (--weights random is "
        "for training from nothing, with many images and hours; untrained, such a network is of no use.)"
    )


def hub_file(weights: str, hub_seconds: float = 10.0) -> Path:
    """Return the local copy of ``hf-hub:NAME``, ``hf-hub:NAME@REVISION`` or ``timm/NAME``, fetched if there is none.

    Raises ``FineSightError`` after ``hub_seconds`` when the hub is out of reach.
    """
    if weights.startswith(HUB_PREFIX):
        return _repository_file(weights.removeprefix(HUB_PREFIX), FOLDER_FILES, hub_seconds)
    source = _timm_source(weights.removeprefix(TIMM_PREFIX))
    if source.hf_hub_id:
        files = (source.hf_hub_filename,) if source.hf_hub_filename else FOLDER_FILES
        return _repository_file(source.hf_hub_id, files, hub_seconds)
    path = _torch_file(source.url)
    if not path.name.lower().endswith(SUFFIXES):
        raise FineSightError(f"weights '{weights}': timm has them only as {source.url}, which FineSight does not read.")
    if not path.is_file():
        reason = _hub_problem(source.url, hub_seconds)
        try:
            if reason is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                torch.hub.download_url_to_file(source.url, str(path), progress=False)
        except Exception as error:
            reason = first_line(error)
        if reason is not None:
            raise _not_fetched(weights, reason, source.url)
    return path


def _repository_file(name: str, files: tuple[str, ...], seconds: float) -> Path:
    """Return the first of ``files`` that a repository of the Hugging Face hub has, with its shards."""
    repository, _, commit = name.partition("@")
    revision = commit or None
    try:
        url = hf_hub_url(repository, files[0], revision=revision)
        for file in files:
            cached = try_to_load_from_cache(repository, file, revision=revision)
            if isinstance(cached, str) and _is_whole(Path(cached)):
                return Path(cached)
    except HFValidationError as error:
        raise FineSightError(
            f"weights '{HUB_PREFIX}{name}': not a name of the hub ({first_line(error)}). Give hf-hub:OWNER/MODEL."
        ) from error
    reason = _hub_problem(url, seconds)
    if reason is None:
        try:
            for file in files:
                try:
                    path = Path(hf_hub_download(repository, file, revision=revision))
                except LocalEntryNotFoundError:  # the connection broke
                    raise
                except EntryNotFoundError:
                    continue
                for shard in shards(path) if file.endswith(INDEX) else ():
                    hf_hub_download(repository, shard, revision=revision)
                return path
            reason = f"it has none of {', '.join(files)}"
        except FineSightError:
            raise
        except Exception as error:  # whatever the hub's client raises, the user's way out is the same
            reason = first_line(error)
    raise _not_fetched(HUB_PREFIX + name, reason, url)


def hub_folder(repository: str, files: tuple[str, ...], revision: str | None, seconds: float = 10.0) -> Path:
    """Return the local folder with these files of a repository, as the hub has them now, or as they were fetched last.

    Raises ``FineSightError`` after ``seconds`` when the hub is out of reach and they were never fetched.
    """
    options: dict[str, Any] = {"revision": revision, "allow_patterns": list(files)}
    try:
        url = hf_hub_url(repository, files[0], revision=revision)
    except HFValidationError as error:
        raise FineSightError(f"'{repository}' is no name of the hub ({first_line(error)}): give OWNER/NAME.") from error
    reason = _hub_problem(url, seconds)
    for local in (True,) if reason is not None else (False, True):
        try:
            folder = Path(snapshot_download(repository, local_files_only=local, **options))
        except Exception as error:  # whatever the hub's client raises, the user's way out is the same
            reason = reason or first_line(error)
            continue
        if all((folder / file).is_file() for file in files):
            return folder
        reason = reason or f"it has not all of {', '.join(files)}"
    raise FineSightError(
        f"'{repository}' could not be fetched from the hub ({reason}). Check the name and the connection; for a "
        "private repository log in with `hf auth login`."
    )


def _not_fetched(weights: str, reason: str, url: str) -> FineSightError:
    return FineSightError(
        f"the weights '{weights}' could not be fetched ({reason}). Check the name; for a repository that asks for "
        f"consent, log in with `hf auth login`. Without a connection, get {url} on another machine, copy the file "
        "here and give --weights FILE."
    )


def _timm_source(name: str) -> Any:
    """Return where timm has the weights of a model, or raise ``FineSightError``."""
    try:
        source = timm.get_pretrained_cfg(name)
    except (RuntimeError, ValueError):  # it knows the model, and not the tag after the dot
        source = None
    if source is None or not source.has_weights:
        raise FineSightError(
            f"timm has no pretrained weights for '{name}'. Use another backbone, --weights FILE, or --weights random "
            "with a method that trains."
        )
    return source


def _url(source: Any) -> str:
    """Return where the weights of a timm model are."""
    return hf_hub_url(source.hf_hub_id, "model.safetensors") if source.hf_hub_id else str(source.url)


def _hub_problem(url: str, seconds: float) -> str | None:
    """Return why the hub cannot serve this file, or None. The hub's own client would retry for a minute.

    The request runs in a thread because name lookup has no time limit.
    """
    answer = [f"no answer within {seconds:.0f} s from {url}"]

    def ask() -> None:
        try:
            status = get_session().head(url, timeout=seconds / 2).status_code
            # 404: the hub is there, and this model's file has another name. 401, 403: the client may be logged in
            answer[0] = "" if status < 400 or status in (401, 403, 404) else f"{url} answered {status}"
        except Exception as error:
            answer[0] = f"{url}: {first_line(error)}"

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0] or None


def _is_cached(source: Any) -> bool:
    if not source.hf_hub_id:
        return _torch_file(source.url).is_file()
    names = (source.hf_hub_filename, "model.safetensors", "pytorch_model.bin")
    return any(isinstance(try_to_load_from_cache(source.hf_hub_id, name), str) for name in names if name)


def _torch_file(url: str) -> Path:
    return Path(torch.hub.get_dir(), "checkpoints", Path(url).name)


def _is_whole(path: Path) -> bool:
    return not path.name.endswith(INDEX) or all((path.parent / shard).is_file() for shard in shards(path))
