"""How many clicks of ``finesight judge`` choose the better of two encoders? True labels are the judge.

    python benchmarks/clicks.py --zoo FOLDER -o results/choosing/clicks.json
    python benchmarks/clicks.py --show results/choosing/clicks.json

FOLDER/birds and FOLDER/cars hold a file ENCODER.npz for each of several encoders: ``labels`` (N,) and, by the name of a
pooling, features (N, D) of the same images. Every encoder under every pooling is a candidate. Pairs are taken whose
rank-1 differs by 1, 2, 5, ... points. A judge clicks through queries on which a pair disagrees, drawn with
replacement, as if the folder were large.
"""

from __future__ import annotations

import argparse
import itertools
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from finesight.evaluation.judging import nearest_images
from finesight.evaluation.sequential import ALPHA, log_e_values
from finesight.io.atomic import write_atomic
from finesight.io.progress import track

DOMAINS = ("birds", "cars")
DIFFERENCES = (1, 2, 5, 10)  # points of rank-1
TOLERANCE = 0.1  # of the difference, and at least one query
USEFUL = 0.5  # of the best rank-1: worse encoders are not compared
PAIRS, JUDGES = 40, 40  # of each difference; of each pair
MOST, SIXTY = 3000, 60  # clicks
WRONG = (0.0, 0.05)  # share of clicks that are another answer than the right one


def main() -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", type=Path, help="folder of features")
    parser.add_argument("--show", type=Path, help="print the tables of this result")
    parser.add_argument("-o", "--out", type=Path, help="where to write the result")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.show is not None:
        result = json.loads(options.show.read_text())
    elif options.zoo is not None:
        result = simulate(options.zoo, options.seed)
    else:
        parser.error("give --zoo or --show")
    if options.out is not None:
        write_atomic(options.out, json.dumps(result, indent=1) + "\n")
    print(tables(result))


def simulate(zoo: Path, seed: int) -> dict[str, Any]:
    """Return a row for each domain, difference and kind of judge."""
    rng = np.random.default_rng(seed)
    rows, sizes = [], {}
    for domain in DOMAINS:
        pairs, sizes[domain] = find_pairs(zoo / domain)
        for difference in DIFFERENCES:
            slack = max(TOLERANCE * difference, 100 / sizes[domain]["images"])
            near = [pair for pair in pairs if abs(pair["difference"] - difference) <= slack]
            chosen = [near[i] for i in sorted(rng.permutation(len(near))[:PAIRS])]
            rows += [score(domain, difference, chosen, wrong, rng) for wrong in WRONG if chosen]
    settings = {"alpha": ALPHA, "judges": JUDGES, "most": MOST, "seed": seed}
    return {"settings": settings, "zoo": sizes, "rows": rows}


def find_pairs(folder: Path) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Return how a judge with labels answers about every pair of useful candidates, and how many of these there are."""
    nearest, labels = [], np.empty(0)
    files = sorted(folder.glob("*.npz"))
    for file in track(files, len(files), folder.name):
        with np.load(file) as content:
            labels = content["labels"]
            poolings = [name for name in content.files if name not in ("labels", "features")]
            nearest += [nearest_images(content[name].astype(np.float32)) for name in poolings]
    right = [labels[found] == labels for found in nearest]
    best = max(hits.mean() for hits in right)
    useful = [i for i, hits in enumerate(right) if hits.mean() >= USEFUL * best]
    pairs = []
    for i, j in itertools.combinations(useful, 2):
        worse, better = (i, j) if right[i].mean() < right[j].mean() else (j, i)
        differ = nearest[i] != nearest[j]
        clicks = (right[better].astype(int) - right[worse])[differ]
        if len(clicks):
            pairs.append(
                {
                    "difference": 100 * float(right[better].mean() - right[worse].mean()),
                    "disagree": float(differ.mean()),
                    "better": float((clicks > 0).mean()),  # of the disagreeing queries
                    "worse": float((clicks < 0).mean()),
                }
            )
    facts = {"images": len(labels), "classes": len(np.unique(labels)), "encoders": len(files), "useful": len(useful)}
    return pairs, {**facts, "candidates": len(nearest), "best_rank1": 100 * float(best), "pairs": len(pairs)}


def score(
    domain: str, difference: int, pairs: list[dict[str, float]], wrong: float, rng: np.random.Generator
) -> dict[str, Any]:
    """Let judges click, and say how many clicks they need and how often they choose the worse one."""
    clicks = np.concatenate([draw(pair, wrong, rng) for pair in pairs])  # (judges, MOST)
    b, a = np.cumsum(clicks > 0, axis=1), np.cumsum(clicks < 0, axis=1)
    reached = b - a >= lead_to_win()[a + b]
    reached |= a - b >= lead_to_win()[a + b]
    decided = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, MOST + 1)
    ended = decided <= MOST
    at = np.minimum(decided, MOST) - 1
    lead = (b - a)[np.arange(len(clicks)), at]
    leader = (np.sign(b - a) + 1) / 2  # a tie is a coin
    right = leader.mean(axis=0)
    enough = np.flatnonzero(right < 0.95)
    return {
        "domain": domain,
        "difference": difference,
        "wrong_clicks": wrong,
        "pairs": len(pairs),
        "judgings": len(clicks),
        "disagree": median(pairs, "disagree"),
        "informative": float(np.median([pair["better"] + pair["worse"] for pair in pairs])),
        "preferred": float(np.median([pair["better"] / (pair["better"] + pair["worse"]) for pair in pairs])),
        "lead_right_95": int(enough[-1]) + 2 if len(enough) and enough[-1] + 1 < MOST else None if len(enough) else 1,
        "lead_right_at_60": float(right[SIXTY - 1]),
        "test_median": quantile(decided, 0.5),
        "test_95": quantile(decided, 0.95),
        "test_wrong": float((ended & (lead < 0)).mean()),
        "test_open": float((~ended).mean()),
        "decided_by_60": float((decided <= SIXTY).mean()),
    }


def draw(pair: dict[str, float], wrong: float, rng: np.random.Generator) -> np.ndarray:
    """Return clicks (JUDGES, MOST): 1 prefers the better one. A wrong click is one of the three other answers."""
    up, down = pair["better"], pair["worse"]
    tie = 1 - up - down
    chances = [
        (1 - wrong) * down + wrong / 3 * (up + tie),
        (1 - wrong) * tie + wrong / 3 * (2 * up + 2 * down + tie),
        (1 - wrong) * up + wrong / 3 * (down + tie),
    ]
    return rng.choice(np.array([-1, 0, 1], np.int8), (JUDGES, MOST), p=np.array(chances) / sum(chances))


@lru_cache(maxsize=1)
def lead_to_win() -> np.ndarray:
    """Return by how many clicks one must lead for the test to decide, by the number of clicks that prefer one."""
    leads = np.full(MOST + 1, MOST + 1, np.int32)
    for count in range(1, MOST + 1):
        few, many = (
            0,
            count // 2 + 1,
        )  # clicks for the loser: the test decides with ``few``, if at all, not with ``many``
        while many - few > 0:
            middle = (few + many) // 2
            if log_e_values(np.array([middle]), np.array([count - middle]))[0] >= -np.log(ALPHA):
                few = middle + 1
            else:
                many = middle
        if few:
            leads[count] = count - 2 * (few - 1)
    return leads


def median(pairs: list[dict[str, float]], key: str) -> float:
    return float(np.median([pair[key] for pair in pairs]))


def quantile(decided: np.ndarray, share: float) -> int | None:
    """Return None if it lies beyond the last click."""
    value = int(np.ceil(np.quantile(decided, share, method="higher")))
    return value if value <= MOST else None


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> str:
    """Return the result in Markdown."""
    most = result["settings"]["most"]
    head = (
        "| images | difference in rank-1 | pairs | pictures they disagree on | of these, one right | the better one "
        "is right | judge | decided: median | decided: 95 of 100 | wrong one chosen | decided by 60 clicks | leader "
        "after 60 is right | leader is right 95 of 100 |"
    )
    lines = [head, "|:---|---:|---:|---:|---:|---:|:---|---:|---:|---:|---:|---:|---:|"]

    def clicks(value: int | None) -> str:
        return f"> {most:,}" if value is None else f"{value:,}"

    for row in result["rows"]:
        judge = f"{100 * row['wrong_clicks']:.0f} % wrong clicks" if row["wrong_clicks"] else "exact"
        cells = [
            row["domain"],
            f"{row['difference']} points" if row["difference"] > 1 else "1 point",
            str(row["pairs"]),
            f"{100 * row['disagree']:.0f} %",
            f"{100 * row['informative']:.0f} %",
            f"{100 * row['preferred']:.0f} %",
            judge,
            clicks(row["test_median"]),
            clicks(row["test_95"]),
            f"{100 * row['test_wrong']:.1f} %",
            f"{100 * row['decided_by_60']:.0f} %",
            f"{100 * row['lead_right_at_60']:.0f} %",
            clicks(row["lead_right_95"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
