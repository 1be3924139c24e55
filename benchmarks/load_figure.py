"""Draw what ``benchmarks/load.py`` measured: memory, waiting times and refusals over the time.

python benchmarks/load_figure.py results/load/hour.json -o docs/img/load.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from finesight.plots.style import ACCENT, FAINT, INK, QUIET, drawn

SHADES = ("#ffffff", "#f1f4f8", "#e3e9f1")  # of turns with few, some and many clients


@drawn
def over_time(found: dict[str, Any]) -> Figure:
    """Return three panels with one axis of time, shaded by the number of clients."""
    samples = {name: np.array(values, float) for name, values in found["samples"].items()}
    minutes = samples["at"] / 60
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    memory, waiting, rate = figure.subplots(3, 1, sharex=True)
    memory.plot(minutes, samples["memory_mb"], color=ACCENT, label="resident")
    memory.plot(minutes, samples["own_mb"], color=INK, label="of it not shared with files")
    memory.set_ylim(0, 1.25 * samples["memory_mb"].max())
    memory.set_title("Memory of the server (MB)", loc="left")
    for name, color in (("p99_ms", ACCENT), ("p50_ms", INK)):
        waiting.plot(minutes, samples[name] / 1000, color=color, label=name.removesuffix("_ms"))
    waiting.set_yscale("log")
    waiting.yaxis.set_major_formatter("{x:g}")
    waiting.set_title("What a client waits for an answer of any kind (s)", loc="left")
    seconds = np.maximum(np.diff(samples["at"]), 1e-9)
    for name, color, words in (("answered", INK, "answered"), ("refused", ACCENT, "refused (503)")):
        rate.plot(minutes[1:], np.diff(samples[name]) / seconds, color=color, label=words)
    rate.set_title("Requests in a second", loc="left")
    rate.set_xlabel("minutes")
    levels = sorted(set(samples["clients"]) - {0.0})
    for axes in (memory, waiting, rate):
        for start, end, clients in zip(minutes, minutes[1:], samples["clients"][1:], strict=False):
            if clients in levels:
                axes.axvspan(start, end, color=SHADES[levels.index(clients) % len(SHADES)], lw=0)
        for change in found["index_changes"]:
            axes.axvline(change["at"] / 60, color=FAINT, lw=0.8, ls=":")
        axes.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 0.98), labelcolor=FAINT)
        axes.set_xlim(0, minutes[-1])
    words = ", ".join(f"{level:.0f}" for level in levels)
    figure.supxlabel(f"darker: more clients ({words}); dotted: the index is changed", color=QUIET, fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_bytes(over_time(json.loads(options.result.read_text())))


if __name__ == "__main__":
    main()
