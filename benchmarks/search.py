"""How fast a large gallery is searched through the HTTP API, and what an index costs to build.

    python benchmarks/search.py --parts faiss,milvus,milvus-server,compare,memory,embedding -o results/search

faiss, milvus, milvus-server
                an index of that kind (a folder, a Milvus Lite file, a standalone Milvus server of the package
                ``milvus``, which is started for it) is built of ``--rows`` vectors by the library's own writer, in a
                process of its own; then ``finesight serve`` is started on it and asked by ``GET
                /api/search?query=ITEM``, over connections that stay open: one client after the other, then
                ``--clients`` at a time. The time of a query is what the client waits; nothing is embedded. Recall is
                that of the API's ten hits against a scan of all vectors by NumPy.
compare         a folder and a standalone Milvus server of the same vectors, both served at the same time and asked in
                turns, each query by both: whatever else the machine does falls on both alike.
memory          the peak of memory that the writer of an index takes for a quarter of the rows and for all, and that
                ``update_index`` takes for 300 and for 1,200 pictures. Pages of files that are mapped do not count: the
                system takes them back when it likes.
embedding       one picture through ``TorchEmbedder`` (its view to features and mask) and through the bare backbone, in
                turns, for the ratio of the medians.

Vectors are of length 1 around random centers, with a spectrum that falls as that of features does: coordinate i has a
spread of (i + 1)^-0.5, of the centers and, half as wide, within each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import httpx
import numpy as np

from finesight.search.base import IndexItem, IndexMeta, NewItems
from finesight.search.engines import create_index
from finesight.search.image_files import path_id

DIMENSION, CENTERS, BATCH, SPACE = 2048, 2000, 1000, "average"
SERVE = "import typer; from finesight.cli.serve import serve; typer.run(serve)"
LEAST_TRUE = 1e-6  # scores that differ by less are equal
TURN = 20  # queries that many clients put to one server before the next one's turn
SHARES = {"p50": 50, "p95": 95, "p99": 99, "max": 100}


# --- the gallery ------------------------------------------------------------------------------------------------------


def gallery(rows: int, seed: int = 0) -> Iterator[np.ndarray]:
    """(BATCH, D) at a time, the same for the same seed."""
    random = np.random.default_rng(seed)
    spread = (np.arange(DIMENSION, dtype=np.float32) + 1) ** -0.5
    centers = random.standard_normal((CENTERS, DIMENSION), np.float32) * spread
    for start in range(0, rows, BATCH):
        count = min(BATCH, rows - start)
        vectors = random.standard_normal((count, DIMENSION), np.float32) * spread * 0.5
        vectors += centers[random.integers(0, CENTERS, count)]
        yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def item(number: int) -> IndexItem:
    path = f"images/{number:07d}.jpg"
    return IndexItem(path_id(path), path, 100_000, 10**18 + number, 500, 375, np.full((7, 7), 0.5, np.float32))


def encoder(folder: Path) -> Path:
    """A ResNet-50 of random weights, which is never run: the server wants the one that made the index."""
    import torch

    from finesight.api import frozen
    from finesight.nn.backbone_config import BackboneConfig

    torch.manual_seed(0)
    frozen(BackboneConfig(name="resnet50", weights="random"), 224).save(folder / "encoder")
    return folder


def meta_of(run: Path) -> IndexMeta:
    from finesight.features.encoder_folder import fingerprint

    return IndexMeta(
        fingerprint=fingerprint(run),
        method="frozen",
        resolution=224,
        spaces=(SPACE,),
        dimension=DIMENSION,
        root=str(run),
        run=str(run),
    )


# --- memory -----------------------------------------------------------------------------------------------------------


class Peak:
    """The most memory this process held of its own, looked at fifty times a second."""

    def __init__(self) -> None:
        self.bytes, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.bytes = max(self.bytes, own_memory())

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return max(self.bytes, own_memory())


def own_memory(process: int | str = "self") -> int:
    with open(f"/proc/{process}/status") as stream:
        return next(1024 * int(line.split()[1]) for line in stream if line.startswith("RssAnon:"))


def in_child(work: str, **arguments: Any) -> dict[str, Any]:
    """What a function of this file returns, run in a process of its own."""
    command = [sys.executable, __file__, "--child", work, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def build(where: str, run: str, rows: int, finish: bool) -> dict[str, Any]:
    """Writes the gallery into an index. -> seconds and bytes"""
    index = create_index(where, meta_of(Path(run)), Path(run) / "encoder")
    before, peak, began = own_memory(), Peak(), time.perf_counter()
    for number, vectors in enumerate(gallery(rows)):
        index.add(NewItems([item(number * BATCH + n) for n in range(len(vectors))], {SPACE: vectors}))
    added, peak_adding = time.perf_counter() - began, peak.bytes
    if finish:
        index.finish()
    whole = time.perf_counter() - began
    facts = index.facts()
    index.close()
    return {
        "add_seconds": added,
        "finish_seconds": whole - added,
        "peak_bytes_adding": peak_adding - before,
        "peak_bytes": peak.stop() - before,
        "disk_bytes": folder_bytes(Path(where)),
        "facts": {name: value for name, value in facts.items() if name not in ("spaces", "place", "bytes")},
    }


def update(folder: str, images: int) -> dict[str, Any]:
    """``update_index`` on so many pictures with a small network: what it holds must not depend on how many."""
    import torch
    from PIL import Image

    from finesight.features.embedder import TorchEmbedder
    from finesight.features.encoder import Encoder
    from finesight.features.encoder_config import EncoderConfig
    from finesight.nn.backbone_config import BackboneConfig
    from finesight.search.build import open_or_create, update_index

    torch.manual_seed(0)
    backbone = BackboneConfig(name="test_resnet", weights="random", output_stride=8)
    run, pictures = Path(folder) / "run", Path(folder) / "pictures"
    Encoder.untrained(EncoderConfig(method="frozen", resolution=64, pooling="average", backbone=backbone)).save(
        run / "encoder"
    )
    pictures.mkdir()
    random = np.random.default_rng(0)
    for number in range(images):
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        coarse.resize((640, 480), Image.Resampling.BILINEAR).save(pictures / f"{number:05d}.jpg", quality=85)
    engine = TorchEmbedder.load(run)
    index = open_or_create(Path(folder) / "index", engine, run, pictures)
    before, peak = own_memory(), Peak()
    report = update_index(index, engine, pictures)
    index.close()
    return {"images": report.added, "peak_bytes": peak.stop() - before}


def memory(rows: int) -> dict[str, Any]:
    found: dict[str, Any] = {"writer": {}, "update_index": {}}
    for count in (rows // 4, rows):
        with tempfile.TemporaryDirectory() as folder:
            run = str(encoder(Path(folder) / "run"))
            built = in_child("build", where=f"{folder}/index", run=run, rows=count, finish=False)
        found["writer"][count] = built["peak_bytes_adding"]
    for count in (300, 1200):
        with tempfile.TemporaryDirectory() as folder:
            found["update_index"][count] = in_child("update", folder=folder, images=count)["peak_bytes"]
    return found


# --- through the API --------------------------------------------------------------------------------------------------


@contextmanager
def serving(where: str) -> Iterator[tuple[str, int]]:
    """``finesight serve`` on an index. -> its address, and its process"""
    command = [sys.executable, "-c", SERVE, where, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1].rstrip("/"), process.pid
        finally:
            process.terminate()


def served(where: str, rows: int, queries: int, clients: int) -> dict[str, Any]:
    """Starts the server on an index and asks it."""
    began = time.perf_counter()
    with serving(where) as (address, process):
        started = time.perf_counter() - began
        found = asked_in_turns({where: (address, process)}, rows, queries, clients)[where]
    return {"start_seconds": started, **found}


def asked_in_turns(
    servers: dict[str, tuple[str, int]], rows: int, queries: int, clients: int
) -> dict[str, dict[str, Any]]:
    """Asks servers of the same gallery the same queries, each of them in turn: first by one client, then by many."""
    asked = np.random.default_rng(1).choice(rows, queries, replace=False).tolist()
    alone: dict[str, dict[str, list[float]]] = {name: {"wait": [], "search": []} for name in servers}
    many: dict[str, list[float]] = {name: [] for name in servers}
    scores: dict[str, list[list[float]]] = {name: [] for name in servers}
    spent = dict.fromkeys(servers, 0.0)
    for address, _ in servers.values():
        ask(address, asked[:20])  # what is read from disk once
    with ExitStack() as stack:
        web = {
            name: stack.enter_context(httpx.Client(base_url=address, timeout=120))
            for name, (address, _) in servers.items()
        }
        for turn, number in enumerate(asked):
            for name in sorted(servers, reverse=bool(turn % 2)):
                before = processor_seconds(servers[name][1])
                wait, search, hits = ask_one(web[name], number)
                spent[name] += processor_seconds(servers[name][1]) - before
                alone[name]["wait"].append(wait)
                alone[name]["search"].append(search)
                scores[name].append(hits)
    for start in range(0, queries, TURN):
        part = asked[start : start + TURN]
        for name, (address, _) in servers.items():
            with ThreadPoolExecutor(clients) as pool:
                for one in pool.map(lambda n, to=address, ids=part: ask(to, ids[n::clients]), range(clients)):
                    many[name] += one
    return {
        name: {
            "one_client_ms": spread(alone[name]["wait"]),
            "one_client_search_ms": spread(alone[name]["search"]),
            "server_processor_ms": 1000 * spent[name] / queries,
            f"{clients}_clients_ms": spread(many[name]),
            "server_bytes": own_memory(process),
            "recall_at_10": recall(rows, asked, scores[name]),
        }
        for name, (_, process) in servers.items()
    }


def processor_seconds(process: int) -> float:
    """Of all its threads: unlike the clock, hardly longer when others use the machine."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(address: str, numbers: list[int]) -> list[float]:
    """Milliseconds the client waits for each."""
    with httpx.Client(base_url=address, timeout=120) as client:
        return [ask_one(client, number)[0] for number in numbers]


def ask_one(client: httpx.Client, number: int) -> tuple[float, float, list[float]]:
    """Milliseconds the client waits and the search takes, and the scores of the hits."""
    began = time.perf_counter()
    answer = client.get("/api/search", params={"query": str(item(number).id), "k": 24})
    wait = 1000 * (time.perf_counter() - began)
    found = answer.raise_for_status().json()
    return wait, found["took"]["search_ms"], [hit["score"] for hit in found["hits"]]


def spread(values: list[float]) -> dict[str, float]:
    return {name: float(np.percentile(values, share)) for name, share in SHARES.items()}


def recall(rows: int, asked: list[int], hits: list[list[float]]) -> float:
    """The share of the ten nearest of each query that is among the first ten of its hits, by score."""
    wanted = np.array(asked)
    queries = np.empty((len(wanted), DIMENSION), np.float32)
    for number, vectors in enumerate(gallery(rows)):
        here = np.flatnonzero(wanted // BATCH == number)
        queries[here] = vectors[wanted[here] % BATCH]
    best = np.full((len(wanted), 11), -1.0)
    for vectors in gallery(rows):
        best = -np.sort(-np.concatenate([best, queries @ vectors.T], axis=1), axis=1)[:, :11]
    tenth = best[:, 10:]  # the query itself is the first
    return float((np.array([one[:10] for one in hits]) >= tenth - LEAST_TRUE).mean())


@contextmanager
def milvus_server(folder: Path) -> Iterator[tuple[str, int]]:
    """A standalone server that keeps its data in a folder. -> its address, and its process"""
    from milvus import MilvusServer, MilvusServerConfig

    server = MilvusServer(MilvusServerConfig(data_dir=str(folder)))
    server.start()
    try:
        yield f"milvus://127.0.0.1:{server.listen_port}", server.server_proc.pid
    finally:
        with suppress(subprocess.TimeoutExpired):  # it was killed, and a busy machine takes its time
            server.stop()


def searching_server(rows: int, queries: int, clients: int) -> dict[str, Any]:
    """As ``searching``, with the memory and the disk that the server takes."""
    with tempfile.TemporaryDirectory() as scratch, milvus_server(Path(scratch) / "milvus") as (address, process):
        built = build_in_server(Path(scratch), address, process, rows)
        found = served(f"{address}/gallery", rows, queries, clients)
        found["milvus_bytes"] = own_memory(process)
    return {"rows": rows, "dimension": DIMENSION, "queries": queries, "build": built, "search": found}


def build_in_server(folder: Path, address: str, process: int, rows: int) -> dict[str, Any]:
    """The gallery in a Milvus server whose data are in ``folder``, unless it is there already."""
    facts = folder / "build-milvus.json"
    if not facts.exists():
        program, run = folder_bytes(folder / "milvus"), encoder(folder / "run")
        built = in_child("build", where=f"{address}/gallery", run=str(run), rows=rows, finish=True)
        built["disk_bytes"] = folder_bytes(folder / "milvus") - program
        built["milvus_bytes"] = own_memory(process)
        facts.write_text(json.dumps(built))
    return dict(json.loads(facts.read_text()))


def comparing(rows: int, queries: int, clients: int, keep: Path | None) -> dict[str, Any]:
    """A folder and a Milvus server of the same gallery, asked in turns."""
    with ExitStack() as stack:
        folder = keep / f"compare-{rows}" if keep else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        built = {"faiss": build_folder(folder, "index", rows)}
        address, process = stack.enter_context(milvus_server(folder / "milvus"))
        built["milvus"] = build_in_server(folder, address, process, rows)
        places = {"faiss": str(folder / "index"), "milvus": f"{address}/gallery"}
        servers = {name: stack.enter_context(serving(where)) for name, where in places.items()}
        found = asked_in_turns(servers, rows, queries, clients)
        found["milvus"]["milvus_bytes"] = own_memory(process)
    return {"rows": rows, "dimension": DIMENSION, "queries": queries, "build": built, "search": found}


def folder_bytes(folder: Path) -> int:
    return sum(os.stat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names)


def searching(kind: str, rows: int, queries: int, clients: int, keep: Path | None) -> dict[str, Any]:
    """With ``keep`` the index stays there, and one that is there already is only asked."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if keep is None else keep / f"{kind}-{rows}"
        name = "index" if kind == "faiss" else "index.db"
        built = build_folder(folder, name, rows)
        found = served(str(folder / name), rows, queries, clients)
    return {"rows": rows, "dimension": DIMENSION, "queries": queries, "build": built, "search": found}


def build_folder(folder: Path, name: str, rows: int) -> dict[str, Any]:
    """The gallery in an index of this machine, unless it is there already."""
    facts = folder / "build.json"
    if not facts.exists():
        run = encoder(folder / "run")
        facts.write_text(json.dumps(in_child("build", where=str(folder / name), run=str(run), rows=rows, finish=True)))
    return dict(json.loads(facts.read_text()))


# --- embedding --------------------------------------------------------------------------------------------------------


def embedding(rounds: int, threads: int) -> dict[str, Any]:
    """An LCR encoder with its default pooling. Seconds of the clock and of the processor."""
    import torch

    from finesight.features.embedder import TorchEmbedder
    from finesight.features.encoder import Encoder
    from finesight.features.encoder_config import EncoderConfig
    from finesight.features.types import View
    from finesight.nn.backbone_config import BackboneConfig
    from finesight.rationale.config import VARIANTS

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = EncoderConfig(
        method="lcr",
        resolution=224,
        pooling="rationale-gem",
        backbone=BackboneConfig(name="resnet50", weights="random"),
        rationale=VARIANTS["finesight"],
    )
    engine = TorchEmbedder(Encoder.untrained(config).eval(), "0" * 32)
    random = np.random.default_rng(0)
    clock: dict[str, list[float]] = {"engine": [], "backbone": []}
    processor: dict[str, list[float]] = {"engine": [], "backbone": []}
    for number in range(rounds + 3):
        view = View(random.integers(0, 256, (224, 224, 3), dtype=np.uint8), (0, 0, 1, 1), 224, 224)
        images = torch.randn(1, 3, 224, 224)
        for name in sorted(clock, reverse=bool(number % 2)):
            began, spent = time.perf_counter(), time.process_time()
            if name == "engine":
                engine.encode([view])
            else:
                with torch.inference_mode():
                    engine.encoder.backbone(images)
            if number >= 3:  # the first are slower: memory is laid out
                clock[name].append(time.perf_counter() - began)
                processor[name].append(time.process_time() - spent)
    return {
        "rounds": rounds,
        "threads": threads,
        "engine_ms": 1000 * float(np.median(clock["engine"])),
        "backbone_ms": 1000 * float(np.median(clock["backbone"])),
        "ratio_of_medians": float(np.median(clock["engine"]) / np.median(clock["backbone"])),
        "ratio_of_processor_medians": float(np.median(processor["engine"]) / np.median(processor["backbone"])),
        "quartiles_of_processor_ratios": np.percentile(
            np.divide(processor["engine"], processor["backbone"]), (25, 50, 75)
        ).tolist(),
    }


# --- all --------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="faiss,milvus,milvus-server,compare,memory,embedding")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--milvus-rows", type=int, default=0, help="by default as --rows")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="a folder for the indexes, to be asked again")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps({"build": build, "update": update}[options.child[0]](**json.loads(options.child[1]))))
        return
    for part in options.parts.split(","):
        rows = options.milvus_rows or options.rows if part == "milvus" else options.rows
        load = os.getloadavg()[0]
        if part == "memory":
            found = memory(rows)
        elif part == "embedding":
            found = embedding(options.rounds, options.threads)
        elif part == "compare":
            found = comparing(rows, options.queries, options.clients, options.keep)
        elif part == "milvus-server":
            found = searching_server(rows, options.queries, options.clients)
        else:
            found = searching(part, rows, options.queries, options.clients, options.keep)
        write(part, found, load, options)


def write(part: str, found: dict[str, Any], load: float, options: argparse.Namespace) -> None:
    from finesight.paper.machine import record_measurement

    words = {"faiss": ("rows", "queries", "clients"), "memory": ("rows",), "embedding": ("rounds", "threads")}
    words["milvus-server"] = words["compare"] = words["faiss"]
    words["milvus"] = ("milvus_rows", "queries", "clients")
    given = "".join(f" --{name.replace('_', '-')} {getattr(options, name)}" for name in words[part])
    if options.keep is not None and part in ("faiss", "milvus", "compare"):
        given += " --keep FOLDER"  # built and asked in two runs
    result = {
        "command": f"python benchmarks/search.py --parts {part}{given}",
        **found,
        "load_average_before_and_after": [round(load, 2), round(os.getloadavg()[0], 2)],
    }
    print(record_measurement(result, options.out and options.out / f"{part}.json"))


if __name__ == "__main__":
    main()
