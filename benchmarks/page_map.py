"""Measure how smoothly the map of the search page moves with many points, in a real browser.

finesight serve INDEX &
python benchmarks/page_map.py http://127.0.0.1:8000/ --points 100000 -o results/page-map.json
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

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
        times.push(now - before);
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    data, groups = synthetic(options.points)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.route("**/api/map", lambda route: route.fulfill(body=data, content_type="application/octet-stream"))
        names = [f"folder {n}" for n in range(60)]
        page.route("**/api/map/colors*", lambda route: route.fulfill(json={"names": names, "colors": groups}))
        page.goto(f"{options.url}?view=map")
        page.wait_for_selector("#map-legend li")
        page.evaluate(PAN, 60)
        times = np.array(page.evaluate(PAN, options.frames))
        renderer = page.evaluate(
            "(() => { const gl = document.createElement('canvas').getContext('webgl'),"
            " info = gl.getExtension('WEBGL_debug_renderer_info');"
            " return info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : ''; })()"
        )
        browser.close()
    found = {
        "points": options.points,
        "frames": options.frames,
        "frames_per_second": round(1000 / float(times.mean()), 1),
        "median_ms": round(float(np.median(times)), 2),
        "p95_ms": round(float(np.percentile(times, 95)), 2),
        "renderer": renderer,
    }
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
