"""The photos, the index and the servers of ``benchmarks/load.py``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load_client import Connection, Site
from load_run import Server

TOKEN = "a-word-for-the-load"
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


@dataclass(frozen=True)
class Place:
    """A folder with photos, others that come and go, and the index of what is there."""

    folder: Path
    queries: list[Path]  # photos that are never in the index

    @property
    def photos(self) -> Path:
        return self.folder / "photos"

    @property
    def index(self) -> Path:
        return self.folder / "run" / "index"

    def exchange(self) -> None:
        """Take some photos out of the folder and put others in; called again, it is undone."""
        for name in ("aside", "inside"):
            (self.folder / name).mkdir(exist_ok=True)
        plan = json.loads((self.folder / "plan.json").read_text())
        out, back = (
            (plan["goes"], plan["comes"]) if (self.photos / plan["goes"][0]).exists() else (plan["comes"], plan["goes"])
        )
        for name in out:
            (self.photos / name).rename(self.folder / "aside" / name)
        for name in back:
            (self.folder / "aside" / name).rename(self.photos / name)

    def update(self) -> None:
        """Make the index what the folder is, in this process."""
        from finesight.features.embedder import TorchEmbedder
        from finesight.search.build import open_or_create, update_index

        engine = TorchEmbedder.load(self.folder / "run")
        index = open_or_create(str(self.index), engine, self.folder / "run", self.photos)
        update_index(index, engine, self.photos, workers=1)
        index.close()

    def index_command(self) -> list[str]:
        words = ["index", str(self.folder / "run"), str(self.photos), "--index", str(self.index), "--workers", "1"]
        return [sys.executable, "-m", "finesight", *words, "--quiet", "--json"]


def prepare(folder: Path, options: argparse.Namespace) -> Place:
    """Copy photos, save the network and make the index."""
    from finesight.api import frozen
    from finesight.nn.backbone_config import BackboneConfig

    files = sorted(file for file in Path(options.photos).rglob("*") if file.suffix.lower() in SUFFIXES)
    random.Random(options.seed).shuffle(files)
    passing = max(2, options.images // 30)
    needed = options.images + 2 * passing + options.uploads
    if len(files) < needed:
        raise SystemExit(f"{options.photos} has {len(files)} photos; {needed} are needed: give a smaller --images.")
    place = Place(folder, files[-options.uploads :])
    names = [f"{file.parent.name}-{file.name}" for file in files]
    for sub in ("photos", "aside"):
        (folder / sub).mkdir(parents=True)
    for number, (file, name) in enumerate(zip(files, names, strict=True)):
        if number < options.images + 2 * passing:
            shutil.copyfile(file, (place.photos if number < options.images else folder / "aside") / name)
    plan = {"goes": names[:passing], "comes": names[options.images : options.images + 2 * passing]}
    (folder / "plan.json").write_text(json.dumps(plan))
    backbone = BackboneConfig(name=options.backbone, weights=options.weights, output_stride=options.output_stride)
    frozen(backbone, options.resolution).save(folder / "run" / "encoder")
    print(f"Indexing {options.images:,} photos", flush=True)
    place.update()
    return place


async def run_command(command: list[str]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **ONE_THREAD}
    )
    out, err = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {err.decode()[-1000:]}")
    return dict(json.loads(out.decode().splitlines()[-1]))


@contextmanager
def our_server(place: Place) -> Iterator[Server]:
    words = ["serve", str(place.index), "--port", "0", "--cache-dir", str(place.folder / "cache")]
    log = place.folder / "server.log"
    server = Server([sys.executable, "-m", "finesight", *words], log, TOKEN, FINESIGHT_TOKEN=TOKEN, **ONE_THREAD)
    try:
        yield server
    finally:
        if server.is_running:
            server.stop()


async def listed(site: Site) -> dict[str, str]:
    """The id of each path in the index."""
    connection, found = Connection(site), dict[str, str]()
    while True:
        page = (await connection.ask(site.get("/api/items", limit=500, offset=len(found)))).json
        found |= {item["path"]: item["id"] for item in page["items"]}
        if not page["items"] or len(found) >= page["total"]:
            connection.close()
            return found


@contextmanager
def plain_server(place: Place) -> Iterator[Server]:
    script = Path(__file__).resolve().parent / "peer_server.py"
    server = Server([sys.executable, str(script), str(place.index)], place.folder / "plain.log", **ONE_THREAD)
    try:
        yield server
    finally:
        if server.is_running:
            server.stop()
