"""The index of a run: where it is, and how to make it from Python."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from finesight.data.sources import open_source
from finesight.features.embedder import TorchEmbedder
from finesight.features.encoder_folder import warn_of_random_weights
from finesight.search.build import IndexUpdate, open_or_create, update_run_index
from finesight.search.engines import index_exists, open_index
from finesight.search.index_folder import FROZEN_INDEX, RUN_INDEX


def index_images(
    run: str | Path,
    images: str | Path,
    *,
    index: str | Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> IndexUpdate:
    """Make the index of a run, or bring it up to date: only new and changed images are embedded.

    ``images`` are a folder, a list of paths or a known dataset. The index is ``RUN/index`` unless ``index`` names
    another place. Returns what was added, changed, removed and left out. Raises ``FineSightError`` if the index is of
    another run or another folder, or if there are no images.
    """
    run = Path(run)
    embedder = TorchEmbedder.load(run)
    warn_of_random_weights(run)
    source = open_source(str(images))
    where = usual_place(run, embedder.fingerprint) if index is None else str(index)
    with closing(open_or_create(where, embedder, run, source.root)) as store:
        return update_run_index(store, embedder, source, run, workers=workers, show=progress)


def usual_place(run: Path, fingerprint: str) -> str:
    """Return the index of a run: of the frozen network's own if that is the encoder that is kept."""
    frozen = run / FROZEN_INDEX
    if index_exists(frozen) and open_index(frozen).meta.fingerprint == fingerprint:
        return str(frozen)
    return str(run / RUN_INDEX)
