"""Kill the writer of an index in a Milvus server at random moments; whatever a reader sees must be whole.

    python tests/milvus_chaos.py --kills 60 -o results/chaos/milvus.json

A folder of pictures is indexed by ``update_index``, three pictures to a commit, in a process that is killed (SIGKILL)
at a random moment and started again, until it comes to its end. Then pictures are changed, removed and added, and so
on. Meanwhile a reader looks at the index all the time: each picture that is listed must have its features in all
spaces, and they must be those before or after the change, to the last bit. In the end the index must be that of a
folder index that nobody disturbed, and no collection may be left over.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from finesight.errors import FineSightError
from finesight.search.base import Index
from finesight.search.engines import index_exists, open_index
from indexes import contents, small_encoder, update_slowly
from milvus_servers import MilvusProcess
from processes import TIMEOUT, start_server
from serving import drawn

PICTURES = 21


class Folder:
    """Pictures of which every version changes some."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self._random, self._next = root, np.random.default_rng(seed), 0
        root.mkdir()
        for _ in range(PICTURES):
            self._draw(f"{self._next:04d}.png")

    def _draw(self, name: str) -> None:
        (self.root / name).write_bytes(drawn(size=(40, 40), seed=self._next))
        self._next += 1

    def change(self) -> None:
        names = self._random.permutation(sorted(file.name for file in self.root.iterdir())).tolist()
        for name in names[:6]:
            self._draw(name)
        for name in names[6:9]:
            (self.root / name).unlink()
        for _ in range(3):
            self._draw(f"{self._next:04d}.png")


class Reader:
    """Looks at an index until it is stopped. ``allowed`` is what each picture may be."""

    def __init__(self, uri: str) -> None:
        self.uri, self.allowed = uri, [dict[str, tuple[object, ...]]()]
        self.looks, self.wrong = 0, list[str]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        index: Index | None = None
        while not self._ended.wait(0.02):
            try:
                if index is None and index_exists(self.uri):
                    index = open_index(self.uri)
                if index is not None:
                    self._look(index)
                    self.looks += 1
            except FineSightError as error:
                self.wrong.append(str(error))
        if index is not None:
            index.close()

    def _look(self, index: Index) -> None:
        for number in index.list_items().ids.tolist()[:: max(1, self.looks % 5)]:
            one = index.item(number)
            if one is None:
                continue  # removed or replaced since
            try:
                vectors = [index.vectors(np.array([number]), space)[0].tobytes() for space in index.meta.spaces]
            except FineSightError:
                if index.item(number) is not None:
                    raise
                continue
            known = [version[one.path] for version in self.allowed if one.path in version]
            before = {(number, *vectors[:1]), (number, *vectors[1:])}
            if not all(any(part[0] == row[0] and part[1] in row for row in known) for part in before):
                self.wrong.append(f"{one.path} has features that no version has")


def updating(where: str, run: Path, images: Path) -> Any:
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=update_slowly, args=(where, str(run), str(images)), daemon=True)
    process.start()
    return process


def undisturbed(folder: Path, run: Path, images: Path) -> dict[str, tuple[object, ...]]:
    """What a folder index of the pictures holds. It is made in a process like those that are killed: same threads."""
    process = updating(str(folder), run, images)
    process.join(TIMEOUT)
    assert process.exitcode == 0, f"the update failed with exit code {process.exitcode}"
    index = open_index(folder)
    found = contents(index)
    index.close()
    return found


def chaos(server: MilvusProcess, scratch: Path, kills: int, seed: int = 0) -> dict[str, Any]:
    """Kill a writer so many times, and return what was seen."""
    start_server()
    random = np.random.default_rng(seed)
    images, run, uri = Folder(scratch / "images", seed), small_encoder(scratch / "run"), server.uri(f"chaos{seed}")
    reader, seconds, done, versions, equal = Reader(uri), 4.0, 0, 0, 0
    began = time.monotonic()
    while done < kills:
        expected = undisturbed(scratch / "index", run, images.root)
        reader.allowed = [*reader.allowed[-1:], expected]
        budget = min(max(2, kills // 8), kills - done)  # of kills for this version
        while True:
            start, process = time.monotonic(), updating(uri, run, images.root)
            process.join(random.uniform(0, seconds) if budget else TIMEOUT)
            if process.exitcode is None:
                assert budget, "an update that nobody disturbed did not end"
                process.kill()
                process.join()
                budget, done = budget - 1, done + 1
                continue
            assert process.exitcode == 0, f"the update failed with exit code {process.exitcode}"
            seconds = max(2.0, time.monotonic() - start)
            break
        index = open_index(uri)
        versions, equal = versions + 1, equal + (contents(index) == expected)
        index.close()
        images.change()
    reader.stop()
    left = [name for name in server.client().list_collections() if name.startswith(f"chaos{seed}__")]
    return {
        "kills": done,
        "versions": versions,
        "versions_equal_to_undisturbed": equal,
        "looks_of_the_reader": reader.looks,
        "wrong": reader.wrong[:10],
        "wrong_looks": len(reader.wrong),
        "collections_left": len(left),
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
    }


def main() -> None:
    from finesight.paper.machine import record_measurement

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        server = MilvusProcess(Path(scratch) / "milvus")
        try:
            found = chaos(server, Path(scratch), options.kills, options.seed)
        finally:
            server.kill()
    command = f"python tests/milvus_chaos.py --kills {options.kills} --seed {options.seed}"
    print(record_measurement({"command": command, **found}, options.out))


if __name__ == "__main__":
    main()
