"""An index that is brought up to date with a folder that changes: its writer is killed while a reader looks.

Three pictures go into a commit. Before each trial pictures are changed, removed and added. A reader looks at the index
all the time: each picture that is listed must have its features in all spaces, and they must be those before or after
the change, to the last bit. At the end the index must be that of a folder that nobody disturbed, and nothing may be
left over in the server.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np

from chaos.workloads import Workload, World, digest
from finesight.errors import FineSightError
from finesight.search.base import Index
from finesight.search.engines import index_exists, open_index
from indexes import contents, small_encoder, update_slowly
from milvus_servers import MilvusProcess, running_milvus
from processes import Command
from serving import drawn

PICTURES = 21
Contents = dict[str, tuple[object, ...]]


class Folder:
    """Pictures of which every version changes some."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self._random, self._next = root, np.random.default_rng(seed), 0
        root.mkdir(parents=True)
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
    """Looks at an index until it is stopped, while ``awake``. ``allowed`` is what each picture may be."""

    def __init__(self, where: str) -> None:
        self.where, self.allowed = where, [Contents()]
        self.looks, self.wrong = 0, list[str]()
        self._ended, self.awake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self.awake.set()
        self._thread.join()

    def _watch(self) -> None:
        index: Index | None = None
        while self.awake.wait() and not self._ended.wait(0.02):
            try:
                if index is None and index_exists(self.where):
                    index = open_index(self.where)
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


def _update(where: str, run: str, images: str, env: dict[str, str]) -> None:
    os.environ.update(env)
    update_slowly(where, run, images)


class Updating(Command):
    """A process that brings an index up to date."""

    def __init__(self, where: str | Path, run: Path, images: Path, **env: str) -> None:
        self._begin(_update, str(where), str(run), str(images), env)


class Updates(Workload):
    """One index over all trials, and a reader of it. Each trial changes the folder."""

    def __init__(self, name: str, where: str, scratch: Path, seed: int) -> None:
        super().__init__(name, lambda world, place: (), self._outputs)
        self.where, self._scratch = where, scratch
        self._run, self.images = small_encoder(scratch / "run"), Folder(scratch / "images", seed)
        self.reader, self._reported = Reader(where), 0

    def start(self, world: World, place: Path, **env: str) -> Command:
        return Updating(self.where, self._run, self.images.root, **env)

    def begin(self, world: World, place: Path) -> None:
        """Change the folder, and index it elsewhere as it is now."""
        super().begin(world, place)
        if not index_exists(self.where):
            self._update(self.where)
            self.reader.allowed = [self._contents(self.where)]
        self.images.change()
        self._update(str(self._scratch / "undisturbed"))
        self.reader.allowed = [*self.reader.allowed[-1:], self._contents(str(self._scratch / "undisturbed"))]

        self.reader.awake.set()

    def _update(self, where: str) -> None:
        done = Updating(where, self._run, self.images.root).wait()
        assert done.code == 0, done

    def _outputs(self, place: Path) -> dict[str, str]:
        self.reader.awake.clear()
        return _digests(self._contents(self.where))

    def expected(self, known: dict[str, str]) -> dict[str, str]:
        return _digests(self.reader.allowed[-1])

    def find_torn(self, place: Path) -> list[str]:
        """Return what the reader has seen since the last question."""
        wrong = self.reader.wrong[self._reported :]
        self._reported += len(wrong)
        return wrong

    @staticmethod
    def _contents(where: str) -> Contents:
        with closing(open_index(where)) as index:
            return contents(index)


class MilvusUpdates(Updates):
    """The same in a Milvus server."""

    def __init__(self, server: MilvusProcess, scratch: Path, seed: int) -> None:
        self._client, self._collection = server.client(), f"chaos{seed}"
        super().__init__("index-milvus", server.uri(self._collection), scratch, seed)

    def find_left_over(self, place: Path) -> list[str]:
        """The manifest and one collection for each of the two spaces are the index."""
        names = [name for name in self._client.list_collections() if name.startswith(f"{self._collection}__")]
        return [] if len(names) == 3 else [f"{len(names)} collections: {', '.join(sorted(names))}"]


def _digests(found: Contents) -> dict[str, str]:
    return {path: digest(repr(facts).encode()) for path, facts in found.items()}


@contextmanager
def updates(scratch: Path, seed: int, *, milvus: bool) -> Iterator[list[Workload]]:
    """Yield the workloads of this file, and end what they started."""
    with ExitStack() as stack:
        found = [Updates("index-faiss", str(scratch / "faiss" / "index"), scratch / "faiss", seed)]
        if milvus:
            server = stack.enter_context(running_milvus(scratch / "milvus"))
            found.append(MilvusUpdates(server, scratch / "for-milvus", seed))
        for one in found:
            stack.callback(one.reader.stop)
        yield list[Workload](found)
