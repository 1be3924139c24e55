"""Camera data of all images, read once in the background and kept in the cache folder, which may be deleted."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import threading
from collections import Counter
from pathlib import Path

from fastapi import HTTPException

from finesight.data.camera_data import UNKNOWN, CameraData, read_camera_data
from finesight.data.store import default_cache_dir
from finesight.io.natural import natural_key
from finesight.server import schemas
from finesight.server.config import ServerConfig, is_loopback
from finesight.server.feature_sets import FeatureSets
from finesight.server.safe_files import open_inside

log = logging.getLogger("finesight.server")
WRITE_EVERY = 500  # images
LOOK_SECONDS = 5.0  # between two looks whether there are new images
MOST_CAMERAS = 500
SCHEMA = """CREATE TABLE IF NOT EXISTS camera (
    id INTEGER PRIMARY KEY, bytes INTEGER, mtime_ns INTEGER, taken TEXT, camera TEXT, latitude REAL, longitude REAL
)"""


class CameraStore:
    """What cameras wrote, by image. Where it is not to be shown, nothing is read."""

    def __init__(self, features: FeatureSets, root: str, config: ServerConfig) -> None:
        self._features, self._root = features, root
        self.shown = is_loopback(config.host) if config.camera_data is None else config.camera_data
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        self._file = Path(config.cache_dir or default_cache_dir()) / "camera" / f"{name}.db"
        self._known: dict[int, tuple[int, int, CameraData]] = {}
        self._stop, self.reading = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="finesight-camera", daemon=True)

    def start(self) -> None:
        """Begin to read in the background."""
        if self.shown:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def get(self, item: int) -> CameraData:
        """Return what is known of an image so far."""
        return self._known[item][2] if self.shown and item in self._known else UNKNOWN

    def read(self, item: int, path: str) -> CameraData | None:
        """Return the data of one image, read now if it was not yet; None where it is not to be shown."""
        if not self.shown:
            return None
        return self._known[item][2] if item in self._known else self._read(path)

    def facts(self) -> schemas.CameraFacts:
        """Return which times and cameras there are."""
        known = [data for _, _, data in list(self._known.values())] if self.shown else []
        times = sorted(data.taken for data in known if data.taken)
        cameras = Counter(data.camera for data in known if data.camera)
        names = sorted(cameras, key=natural_key)[:MOST_CAMERAS]
        return schemas.CameraFacts(
            shown=self.shown,
            reading=self.reading,
            known=len(known),
            dated=len(times),
            first=times[0][:10] if times else None,
            last=times[-1][:10] if times else None,
            cameras=[schemas.NamedCount(name=name, count=cameras[name]) for name in names],
            places=sum(data.latitude is not None for data in known),
        )

    def _read(self, path: str) -> CameraData:
        try:
            stream, _ = open_inside(self._root, path)
        except HTTPException:
            return UNKNOWN
        with stream:
            return read_camera_data(stream)

    def _run(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        self._load()
        before = -1
        while not self._stop.is_set():
            try:
                if (now := len(self._features.get().index)) != before:
                    self._look()
                    before = now
            except Exception as error:  # the index is being replaced, or the disk is full: dates come later
                log.debug("Camera data: %s", error)
            self._stop.wait(LOOK_SECONDS)

    def _look(self) -> None:
        """Read the files that are new or changed."""
        listed = self._features.get().index.list_items()
        rows = zip(
            listed.ids.tolist(), listed.paths.tolist(), listed.bytes.tolist(), listed.mtimes.tolist(), strict=True
        )
        there = set(listed.ids.tolist())
        for gone in [item for item in self._known if item not in there]:
            del self._known[gone]
        fresh: list[int] = []
        self.reading = True
        try:
            for item, path, size, mtime in rows:
                if self._stop.is_set():
                    break
                if self._known.get(item, (None, None))[:2] != (size, mtime):
                    self._known[item] = (size, mtime, self._read(path))
                    fresh.append(item)
                if len(fresh) >= WRITE_EVERY:
                    self._write(fresh)
                    fresh = []
            self._write(fresh)
        finally:
            self.reading = False

    def _load(self) -> None:
        with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(self._open()) as db:
            for item, size, mtime, *values in db.execute("SELECT * FROM camera"):
                self._known[item] = (size, mtime, CameraData(*values))

    def _write(self, ids: list[int]) -> None:
        if not ids:
            return
        rows = [
            (item, size, mtime, data.taken, data.camera, data.latitude, data.longitude)
            for item in ids
            for size, mtime, data in [self._known[item]]
        ]
        with contextlib.suppress(sqlite3.Error, OSError), contextlib.closing(self._open()) as db, db:
            db.executemany("INSERT OR REPLACE INTO camera VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._file, timeout=5)
        db.execute(SCHEMA)
        return db
