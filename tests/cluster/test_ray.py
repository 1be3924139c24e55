"""Embedding and indexing on a real Ray cluster on this machine, whose nodes, and whose users, are killed half way."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from finesight import api
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.features.embedder import TorchEmbedder
from finesight.features.on_ray import embed_on_ray
from finesight.features.parts_folder import embed_on_cluster
from finesight.features.ray_cluster import NO_REPORTS, connected
from finesight.features.writing import embed_images
from finesight.io.lock import locked
from finesight.search.base import Index
from finesight.search.build import open_or_create, update_index
from finesight.search.engines import open_index
from indexes import small_encoder
from milvus_servers import MilvusProcess, free_ports
from processes import TIMEOUT, Command, Finished, children_of, command, refused, start_server, succeeded
from storage import BUCKET, fill_bucket, s3_server, samples_of, write_parquet, write_tar

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
# A node that is gone is missed a little sooner than Ray does otherwise; on a busy machine, one that is slow is not. Its
# processes wait for no others there.
SOON = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 10,
    "worker_niceness": 0,
}
IMAGES = 480
LEADING = re.compile(rb"ray::_Driver")
WORKING = re.compile(rb"ray::MapWorker\(.*\)\.submit")  # an actor that has images and is not done with them


class RayCluster:
    """A head that computes nothing, and two nodes; ``far`` is for processes outside of it (Ray Client)."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        (port,) = free_ports(1)
        head = {**NODE, "num_cpus": 0, "include_dashboard": False, "ray_client_server_port": port}
        self._cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": SOON})
        self._nodes = [self._cluster.add_node(**NODE) for _ in range(2)]
        self._cluster.wait_for_nodes()
        self.address, self.far = self._cluster.address, f"ray://127.0.0.1:{port}"

    def pull_the_plug(self, number: int = -1) -> None:
        """Kill all processes of a node at once, as a power cut does: none of them can say good-bye."""
        raylet = self._raylet(self._nodes.pop(number))
        for process in (raylet, *children_of(raylet)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def pull_the_plug_at_work(self) -> bool:
        """Stop an actor in the middle of its work, and kill its node: what the actor makes cannot have left it."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            for number, node in enumerate(self._nodes):
                for process in self._titled(self._raylet(node), WORKING):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGSTOP)
                        if process in self._titled(self._raylet(node), WORKING):
                            self.pull_the_plug(number)
                            return True
                        os.kill(process, signal.SIGCONT)  # it came to its end meanwhile
            time.sleep(0.02)
        return False

    def add_node(self, **options: Any) -> None:
        self._nodes.append(self._cluster.add_node(**NODE, **options))

    def processes(self, title: re.Pattern[bytes]) -> list[int]:
        """The processes of actors and tasks with such a title."""
        return [one for node in self._cluster.list_all_nodes() for one in self._titled(self._raylet(node), title)]

    @staticmethod
    def _raylet(node: Any) -> int:
        return int(node.all_processes["raylet"][0].process.pid)

    @staticmethod
    def _titled(raylet: int, title: re.Pattern[bytes]) -> list[int]:
        found = []
        for process in children_of(raylet):
            with suppress(OSError):
                if title.match(Path(f"/proc/{process}/cmdline").read_bytes()):
                    found.append(process)
        return found

    def shutdown(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    with s3_server() as store, mock.patch.dict(os.environ, {**store, **NO_REPORTS}):  # its nodes find the store, too
        made = RayCluster()
        with connected(made.address):
            yield made
        made.shutdown()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_encoder(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def many(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """480 images in one folder, and one that is broken."""
    folder = tmp_path_factory.mktemp("many")
    for number, file in enumerate(sorted(class_folders.glob("*/*.png")) * 10):
        shutil.copy(file, folder / f"{number:04d}.png")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing of use")
    return folder


@pytest.fixture(scope="module")
def alone(many: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What one process makes of them."""
    out = tmp_path_factory.mktemp("alone") / "features.npz"
    embed_images(api.load(run), many, out, cache_dir=out.parent / "cache", progress=False)
    with np.load(out) as file:
        return dict(file)


@pytest.fixture(scope="module")
def index_alone(many: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index that one process makes of them."""
    place = tmp_path_factory.mktemp("alone") / "index"
    embedder = TorchEmbedder.load(run)
    index = open_or_create(place, embedder, run, many)
    assert update_index(index, embedder, many).added == IMAGES
    index.close()
    return place


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


def assert_same_index(found: Index, expected: Path) -> None:
    """The same items, and vectors that differ by rounding alone."""
    vectors = []
    for index in (found, open_index(expected)):
        items = index.list_items()
        ids = items.ids[np.argsort(items.paths)]
        vectors.append((ids, index.vectors(ids, index.meta.spaces[0])))
        index.close()
    np.testing.assert_array_equal(vectors[0][0], vectors[1][0])
    assert_close(vectors[0][1], vectors[1][1])


def assert_same_file(found: Path, expected: dict[str, np.ndarray]) -> None:
    with np.load(found) as file:
        assert file["paths"].tolist() == expected["paths"].tolist()
        assert_close(file["features"], expected["features"])


def killed(work: Callable[..., None], *args: Any) -> None:
    """Run ``work`` in a process of its own, which must end by SIGKILL."""
    start_server()
    process = multiprocessing.get_context("forkserver").Process(target=work, args=args, daemon=True)
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode == -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- without a cluster ------------------------------------------------------------------------------------------------


def test_small_jobs_do_not_import_ray(run: Path, class_folders: Path, tmp_path: Path) -> None:
    """And where it is not installed, asking for it is one sentence."""
    (tmp_path / "ray.py").write_text("raise ImportError('Ray was imported')")
    out = tmp_path / "features.npz"
    words, without = ("embed", run, class_folders, "-o", out, "--quiet"), {"PYTHONPATH": str(tmp_path)}
    succeeded(command(*words, **without))
    refused(command(*words, "--cluster", "local", **without), "finesight[ray]")


def test_addresses_that_lead_nowhere(run: Path, class_folders: Path, tmp_path: Path) -> None:
    """Each is one sentence; Ray itself would ask a silent port for many minutes."""

    def tried(address: str) -> Finished:
        return command("embed", run, class_folders, "-o", tmp_path / "features.npz", "--quiet", "--cluster", address)

    (port,) = free_ports(1)
    for wrong in ("somewhere", "http://127.0.0.1:80", "ray://127.0.0.1", "127.0.0.1:99999", "ray://:10001"):
        refused(tried(wrong), "--cluster takes ray://HOST:10001, HOST:6379, auto or local", repr(wrong))
    for nobody in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        refused(tried(nobody), nobody, "cannot be reached: connection refused")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ray://127.0.0.1:{silent.getsockname()[1]}"
        refused(tried(address), f"The Ray cluster {address} cannot be used: what answers there is not Ray")
    assert not (tmp_path / "features.npz").exists()


# --- with one ---------------------------------------------------------------------------------------------------------


def _embed_until_a_part(address: str, run: Path, folder: Path, out: Path) -> None:
    """Die while the fourth part of at most 32 images is given its name."""
    names = set()

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.rename" and str(args[1]).endswith(".parquet"):
            names.add(str(args[1]))
            if len(names) == 4:
                die()

    sys.addaudithook(watch)
    embed_on_cluster(address, run, api.load(run), open_source(folder), out, part_images=32, progress=False)


def test_a_user_that_dies_while_embedding(
    cluster: RayCluster, many: Path, run: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    """The same call continues: what is there is not embedded again, and nothing is lost or doubled."""
    out = tmp_path / "parts"
    killed(_embed_until_a_part, cluster.address, run, many, out)
    before = {file: file.stat().st_mtime_ns for file in out.glob("part-*.parquet")}
    assert len(before) == 3
    assert 3 <= len(parts_of(out)[0]) <= 3 * 32  # on a busy machine, a part is full after a minute
    written, skipped = embed_on_cluster("-", run, api.load(run), open_source(many), out, progress=False)
    assert (written, skipped) == (IMAGES, 1)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    paths, features = parts_of(out)
    assert paths == alone["paths"].tolist()
    assert_close(features, alone["features"])


def _index_until(address: str, run: Path, folder: Path, place: Path, most: int) -> None:
    embedder = TorchEmbedder.load(run)
    index = open_or_create(place, embedder, run, folder)
    update_index(
        index, embedder, folder, callback=lambda _, done, __: die() if done >= most else None, cluster=(address, run)
    )


def test_a_user_that_dies_while_indexing(
    cluster: RayCluster, many: Path, run: Path, index_alone: Path, tmp_path: Path
) -> None:
    """What was committed before, 64 images at a time, is kept."""
    place = tmp_path / "index"
    killed(_index_until, cluster.address, run, many, place, 200)
    embedder = TorchEmbedder.load(run)
    index = open_index(place)
    update = update_index(index, embedder, many, cluster=("-", run))
    assert (update.added, update.kept) == (IMAGES - 192, 192)
    assert [path for path, _ in update.skipped] == ["broken.png"]
    again = update_index(index, embedder, many, cluster=("-", run))
    assert (again.added, again.kept) == (0, IMAGES)
    assert_same_index(index, index_alone)


def test_from_outside_of_the_cluster(
    cluster: RayCluster, many: Path, run: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    """The process of the cluster that leads the work is killed; another one goes on."""
    out = tmp_path / "features.npz"
    running = Command("embed", run, many, "-o", out, "--quiet", "--cluster", cluster.far)
    running.until(lambda: bool(cluster.processes(LEADING)))
    for process in cluster.processes(LEADING):
        os.kill(process, signal.SIGKILL)
    assert f"{IMAGES} features in {out}; 1 file was skipped" in succeeded(running.wait()).err
    assert_same_file(out, alone)
    assert not (tmp_path / "features.npz.parts").exists()


def test_into_milvus(
    cluster: RayCluster, milvus_server: MilvusProcess, many: Path, run: Path, index_alone: Path
) -> None:
    uri = milvus_server.uri("birds")
    words = ("index", run, many, "--index", uri, "--quiet", "--cluster", cluster.far)
    assert f"{IMAGES} added" in succeeded(command(*words)).out
    assert f"{IMAGES} as before" in succeeded(command(*words)).out
    assert_same_index(open_index(uri), index_alone)


def test_a_cluster_of_this_machine(
    many: Path, run: Path, alone: dict[str, Any], index_alone: Path, tmp_path: Path
) -> None:
    out, place = tmp_path / "features.npz", tmp_path / "index"
    succeeded(command("embed", run, many, "-o", out, "--quiet", "--cluster", "local"))
    assert_same_file(out, alone)
    succeeded(command("index", run, many, "--index", place, "--quiet", "--cluster", "local"))
    assert_same_index(open_index(place), index_alone)


def test_places(cluster: RayCluster, class_folders: Path, run: Path, tmp_path: Path) -> None:
    """Tar files in a bucket and a Parquet file on a disk, as one process embeds them."""
    samples = samples_of(class_folders)
    for number in range(2):
        write_tar(tmp_path / "tars" / f"birds-{number}.tar", samples[number::2])
    fill_bucket(tmp_path / "tars")
    write_parquet(tmp_path / "rows" / "birds.parquet", samples)
    for place in (f"s3://{BUCKET}/tars/birds-*.tar", str(tmp_path / "rows")):
        one, many = tmp_path / "one.npz", tmp_path / "many.npz"
        embed_images(api.load(run), place, one, cache_dir=tmp_path / "cache", progress=False)
        written = embed_on_cluster("-", run, api.load(run), open_source(place), many, progress=False)
        assert written == (len(samples), 0)
        with np.load(one) as expected:
            assert_same_file(many, dict(expected))


def test_a_folder_that_the_machines_do_not_see(
    cluster: RayCluster, class_folders: Path, run: Path, tmp_path: Path
) -> None:
    """All features come to this process, which writes the parts; and no second one writes there at the time."""
    here = os.open(tmp_path, os.O_RDONLY)
    out = Path(f"/proc/self/fd/{here}/parts")  # in every process another folder
    source, encoder = open_source(class_folders), api.load(run)
    try:
        assert embed_on_cluster("-", run, encoder, source, out, progress=False) == (48, 0)
    finally:
        os.close(here)
    out = tmp_path / "parts"
    paths, features = parts_of(out)
    embed_images(encoder, class_folders, tmp_path / "one.npz", cache_dir=tmp_path / "cache", progress=False)
    with np.load(tmp_path / "one.npz") as expected:
        assert paths == expected["paths"].tolist()
        assert_close(features, expected["features"])
    with locked(out / "made-by.txt"), pytest.raises(FineSightError, match="Another process is writing to"):
        embed_on_cluster("-", run, encoder, source, out, progress=False)


def test_images_that_the_machines_do_not_see(cluster: RayCluster, many: Path, run: Path) -> None:
    import ray

    config = api.load(run).config
    here = os.open(many, os.O_RDONLY)
    try:
        file = f"/proc/self/fd/{here}/0000.png"  # in every process another folder
        assert Path(file).exists()
        with pytest.raises(FineSightError, match=rf"does not see the images, as {file} \(no such file"):
            next(embed_on_ray(ray, run, [file], config.framing, (config.pooling,), progress=False))
    finally:
        os.close(here)


# The rest is last: the cluster loses nodes, or has one that is not like the others.


def test_a_node_that_dies_at_work(
    cluster: RayCluster, many: Path, run: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    """It is killed while an actor on it has images whose features nobody has: another node does them."""
    out, killed_at_work = tmp_path / "parts", []
    plug = threading.Thread(target=lambda: killed_at_work.append(cluster.pull_the_plug_at_work()))
    plug.start()
    encoder = api.load(run, exact=True)
    written = embed_on_cluster("-", run, encoder, open_source(many), out, part_images=32, progress=False)
    plug.join()
    assert killed_at_work == [True]
    assert written == (IMAGES, 1)
    paths, features = parts_of(out)
    assert paths == alone["paths"].tolist()
    assert_close(features, alone["features"])


def test_a_node_that_dies_while_indexing(
    cluster: RayCluster, many: Path, run: Path, index_alone: Path, tmp_path: Path
) -> None:
    cluster.add_node()
    embedder = TorchEmbedder.load(run)
    index = open_or_create(tmp_path / "index", embedder, run, many)
    dead = []

    def callback(phase: str, done: int, total: int) -> None:
        if done == 1 and phase == "embedding" and not dead:
            dead.append(cluster.pull_the_plug())

    update = update_index(index, embedder, many, callback=callback, cluster=("-", run))
    assert dead
    assert update.added == IMAGES
    assert_same_index(index, index_alone)


def test_a_node_with_a_gpu(cluster: RayCluster, class_folders: Path, run: Path, tmp_path: Path) -> None:
    """As Ray counts them; the network is on a processor. There decoding and the network are apart."""
    cluster.add_node(num_gpus=1)
    one, many = tmp_path / "one.npz", tmp_path / "many.npz"
    embed_images(api.load(run), class_folders, one, cache_dir=tmp_path / "cache", progress=False)
    assert embed_on_cluster("-", run, api.load(run), open_source(class_folders), many, progress=False) == (48, 0)
    with np.load(one) as expected:
        assert_same_file(many, dict(expected))


def refused_there(done: Finished, *words: str) -> None:
    """The message of a command; Ray itself may print to the standard output that a node of an earlier test is dead."""
    refused(Finished(done.code, "", done.err), *words)


def test_a_node_without_finesight(cluster: RayCluster, many: Path, run: Path, tmp_path: Path) -> None:
    fake = tmp_path / "finesight" / "__init__.py"
    fake.parent.mkdir()
    fake.write_text("raise ImportError(\"No module named 'finesight'\")")
    cluster.add_node(env_vars={"PYTHONPATH": str(tmp_path)})
    words = ("embed", run, many, "-o", tmp_path / "features.npz", "--quiet", "--cluster", cluster.address)
    refused_there(command(*words), "has no FineSight (No module named 'finesight'): pip install 'finesight[ray]' there")
    fake.write_text(f"__path__.append({str(Path(api.__file__).parent)!r})\n__version__ = '0.0.1'")
    refused_there(command(*words), "has FineSight 0.0.1, and this one has", "install the same")
