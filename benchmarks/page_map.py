"""Measure the map of the search page: how smoothly it moves in a real browser, or how long it takes to lay it out.

finesight serve INDEX &
python benchmarks/page_map.py http://127.0.0.1:8000/ --points 100000 -o results/page/map-100k.json
OMP_NUM_THREADS=1 nice python benchmarks/page_map.py --lay-out --points 100000 -o results/page/layout-100k.json

The first needs no large index: the points are made up. It counts how many of them are drawn in each picture. The
second lays out made-up vectors, without a browser.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from finesight.paper.machine import record_measurement
from finesight.search.layout import SAMPLE, lay_out

COUNT = """(() => {
    window.drawn = 0;
    const draw = WebGLRenderingContext.prototype.drawArrays;
    WebGLRenderingContext.prototype.drawArrays = function (mode, first, count) {
        window.drawn = count;
        return draw.call(this, mode, first, count);
    };
})()"""

PAN = """async (frames) => {
    const canvas = document.querySelector("#map-canvas"), times = [];
    const area = canvas.getBoundingClientRect(), middle = [area.left + area.width / 2, area.top + area.height / 2];
    const send = (kind, dx) => canvas.dispatchEvent(new PointerEvent(kind, {
        pointerId: 1, button: 0, buttons: 1, clientX: middle[0] + dx, clientY: middle[1] + dx / 3, bubbles: true}));
    canvas.setPointerCapture = () => {};
    send("pointerdown", 0);
    let before = performance.now();
    for (let n = 1; n <= frames; n += 1) {
        send("pointermove", 60 * Math.sin(n / 15));
        await new Promise((go) => requestAnimationFrame(go));
        const now = performance.now();
        times.push([now - before, window.drawn]);
        before = now;
    }
    send("pointercancel", 0);
    return times;
}"""


def synthetic(points: int, seed: int = 0) -> tuple[bytes, list[int]]:
    """Return a map of 60 clusters as the server sends it, and the color of each point."""
    random = np.random.default_rng(seed)
    centers = random.uniform(0.1, 0.9, (60, 2))
    groups = random.integers(0, 60, points)
    places = np.clip(centers[groups] + random.normal(0, 0.02, (points, 2)), 0, 1).astype("<f4")
    return places.tobytes() + np.arange(points).astype("<f8").tobytes(), groups.tolist()


def move(url: str, points: int, frames: int) -> dict[str, Any]:
    """Return how long the pictures took while the map moved, and which share of the points they drew."""
    data, groups = synthetic(points)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.add_init_script(COUNT)
        page.route("**/api/map", lambda route: route.fulfill(body=data, content_type="application/octet-stream"))
        names = [f"folder {n}" for n in range(60)]
        page.route("**/api/map/colors*", lambda route: route.fulfill(json={"names": names, "colors": groups}))
        page.goto(f"{url}?view=map")
        page.wait_for_selector("#map-legend li")
        first = np.array(page.evaluate(PAN, 60))  # begins with all points and draws fewer until it is quick enough
        times, drawn = np.array(page.evaluate(PAN, frames)).T
        renderer = page.evaluate(
            "(() => { const gl = document.createElement('canvas').getContext('webgl'),"
            " info = gl.getExtension('WEBGL_debug_renderer_info');"
            " return info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : ''; })()"
        )
        browser.close()
    full = first[first[:, 1] == points, 0]
    return {
        "points": points,
        "frames": frames,
        "frames_per_second": round(1000 / float(times.mean()), 1),
        "median_ms": round(float(np.median(times)), 2),
        "p95_ms": round(float(np.percentile(times, 95)), 2),
        "share_drawn_median": round(float(np.median(drawn)) / points, 3),
        "share_drawn_least": round(float(drawn.min()) / points, 3),
        "frames_with_all_points": len(full),
        "median_ms_with_all_points": round(float(np.median(full)), 2) if len(full) else None,
        "renderer": renderer,
    }


def time_layout(points: int, width: int = 512, kinds: int = 200, seed: int = 0) -> dict[str, Any]:
    """Return how long it takes to lay out random unit vectors around some centers."""
    random = np.random.default_rng(seed)
    centers = random.standard_normal((kinds, width), np.float32)
    vectors = centers[random.integers(0, kinds, points)] + 0.7 * random.standard_normal((points, width), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    class Vectors:
        """What ``lay_out`` asks of an index."""

        meta = SimpleNamespace(spaces=["average"])

        def __len__(self) -> int:
            return points

        def blocks(self, space: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for start in range(0, points, 4096):
                yield np.arange(start, min(start + 4096, points)), vectors[start : start + 4096]

    start, processor = time.perf_counter(), time.process_time()
    _, places = lay_out(Vectors())  # type: ignore[arg-type]
    return {
        "vectors": points,
        "width": width,
        "sample": min(SAMPLE, points),
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
        "within_0_1": bool((places >= 0).all() and (places <= 1).all()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="of a server with any index")
    parser.add_argument("--lay-out", action="store_true", help="time the layout instead")
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if not options.lay_out and options.url is None:
        parser.error("give the address of a server, or --lay-out")
    load = round(os.getloadavg()[0], 1)
    command = f"python benchmarks/page_map.py {shlex.join(sys.argv[1:])}"
    measured = time_layout(options.points) if options.lay_out else move(options.url, options.points, options.frames)
    print(record_measurement({"command": command, **measured, "load_average": load}, options.out))


if __name__ == "__main__":
    main()
