"""Embedding and indexing on a real Ray cluster of three nodes on this machine, one of which is killed half way."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from finesight import api
from finesight.data.sources import open_source
from finesight.features.embedder import TorchEmbedder
from finesight.features.on_ray import embed_on_ray
from finesight.features.parts_folder import embed_on_cluster
from finesight.features.writing import embed_images
from finesight.search.build import open_or_create, update_index
from processes import command, finesight, refused, succeeded

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that computes nothing, and two nodes."""
    import os

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
    nodes = [made.add_node(**NODE) for _ in range(2)]
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    made.workers = nodes
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def many(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """480 images in one folder, and one that is broken."""
    folder = tmp_path_factory.mktemp("many")
    for number, file in enumerate(sorted(class_folders.glob("*/*.png")) * 10):
        shutil.copy(file, folder / f"{number:04d}.png")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing of use")
    return folder


@pytest.fixture(scope="module")
def alone(many: Path, lcr: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What one process makes of them."""
    out = tmp_path_factory.mktemp("alone") / "features.npz"
    embed_images(api.load(lcr), many, out, cache_dir=out.parent / "cache", progress=False)
    with np.load(out) as file:
        return dict(file)


def parts_of(folder: Path) -> tuple[list[str], np.ndarray]:
    """Paths and features of all parts, in the order of the paths."""
    tables = [pq.read_table(file) for file in sorted(folder.glob("part-*.parquet"))]
    rows = sorted(
        (path, feature)
        for t in tables
        for path, feature in zip(*(t[c].to_pylist() for c in ("path", "feature")), strict=True)
    )
    return [path for path, _ in rows], np.array([feature for _, feature in rows], np.float32)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    lengths = np.linalg.norm(expected, axis=1)
    assert (np.linalg.norm(found - expected, axis=1) <= 1e-4 * lengths).all()


def test_small_jobs_do_not_import_ray(lcr: Path, class_folders: Path, tmp_path: Path) -> None:
    """And where it is not installed, asking for it is one sentence."""
    script = tmp_path / "ray.py"
    script.write_text("raise ImportError('Ray was imported')")
    out = tmp_path / "features.npz"
    without = {"PYTHONPATH": f"{tmp_path}:{':'.join(path for path in sys.path if path)}"}
    succeeded(finesight("embed", lcr, class_folders, "-o", out, "--quiet", **without))
    refused(
        finesight("embed", lcr, class_folders, "-o", out, "--quiet", "--cluster", "local", **without), "finesight[ray]"
    )


def test_stopped_and_continued(cluster: Any, many: Path, lcr: Path, alone: dict[str, Any], tmp_path: Path) -> None:
    """A part of the images first, then all: what is there is not embedded again, and nothing is doubled."""
    encoder, source, out = api.load(lcr), open_source(many), tmp_path / "parts"
    written, _ = embed_on_cluster("-", lcr, encoder, source.select(np.arange(100)), out, progress=False)
    assert written == 100
    before = {file: file.stat().st_mtime_ns for file in out.glob("part-*")}
    written, skipped = embed_on_cluster("-", lcr, encoder, source, out, progress=False)
    assert (written, skipped) == (480, 1)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    paths, features = parts_of(out)
    assert paths == alone["paths"].tolist()
    assert_close(features, alone["features"])


def test_an_index(cluster: Any, many: Path, lcr: Path, tmp_path: Path) -> None:
    embedder = TorchEmbedder.load(lcr)
    found = {}
    for name, where in (("here", None), ("there", ("-", lcr))):
        index = open_or_create(tmp_path / name, embedder, lcr, many)
        update = update_index(index, embedder, many, cluster=where)
        assert update.added == 480
        assert [path for path, _ in update.skipped] == ["broken.png"]
        again = update_index(index, embedder, many, cluster=where)
        assert (again.added, again.kept) == (0, 480)
        items = index.list_items()
        order = np.argsort(items.paths)
        space = embedder.spaces[0]
        found[name] = items.ids[order], index.vectors(items.ids[order], space)
        index.close()
    np.testing.assert_array_equal(found["here"][0], found["there"][0])
    assert_close(found["there"][1], found["here"][1])


def test_the_command(cluster: Any, many: Path, lcr: Path, alone: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "features.npz"
    succeeded(command("embed", lcr, many, "-o", out, "--quiet", "--cluster", cluster.address))
    with np.load(out) as file:
        assert file["paths"].tolist() == alone["paths"].tolist()
        assert_close(file["features"], alone["features"])
    assert not (tmp_path / "features.npz.parts").exists()


def test_a_node_that_dies(cluster: Any, many: Path, lcr: Path, alone: dict[str, Any]) -> None:
    """Last: the cluster has one node less. One image at a time takes seconds, so most is still to be done."""
    import ray

    files = [str(many / path) for path in alone["paths"]]
    config = api.load(lcr).config
    rows = []
    for row in embed_on_ray(ray, lcr, files, config.framing, (config.pooling,), exact=True, progress=False):
        rows.append(row)
        if len(rows) == 1:
            cluster.remove_node(cluster.workers.pop(), allow_graceful=False)
    assert sorted(row.number for row in rows) == list(range(480))
    features = np.stack([row.features[config.pooling] for row in sorted(rows, key=lambda row: row.number)])
    assert_close(features, alone["features"])
