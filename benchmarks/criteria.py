"""Quantities that might tell, without labels, which encoder is the best; each is higher where that is to be expected.

``choosing.py`` makes what they are computed from. A candidate is an encoder under a pooling.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import skew, spearmanr
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, silhouette_score

from finesight.evaluation.bootstrap import paired_bootstrap
from finesight.evaluation.retrieval import retrieval
from finesight.io.console import print_table
from finesight.paper.machine import record_measurement

DOMAINS = ("birds", "cars", "drawn")
K, CLUSTERS, SEED = 10, 50, 0
ENOUGH, ALLOWED, NOTICED = 0.7, 1.0, 0.25  # Spearman; points of mAP lost; points that count as a difference
POOLINGS = ("average", "gem", "energy", "energy-gem", "rationale-gem")
FIXED = "energy-gem"  # the pooling under which encoders are compared with each other
Rows = NDArray[np.float64]
Ids = NDArray[np.int64]


# --- what a criterion sees --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Candidate:
    """Unit features (N, D) of the searched images, and of some of them changed, (M, D) each."""

    plain: Rows
    views: Mapping[str, Rows] = field(default_factory=dict)
    varied: Ids = field(default_factory=lambda: np.arange(0))  # (M,) which images the changed ones are
    others: dict[str, Candidate] = field(default_factory=dict)
    consensus: Rows = field(default_factory=lambda: np.zeros((0, 0)))  # (N, N) mean similarity of all encoders
    # others: the frozen network, the end of its line, itself averaged, a second network, itself on images of training

    @cached_property
    def similarity(self) -> Rows:
        similarity = self.plain @ self.plain.T
        np.fill_diagonal(similarity, -np.inf)
        return similarity

    @cached_property
    def nearest(self) -> Ids:
        return top(self.similarity)

    @cached_property
    def clusters(self) -> Ids:
        return clustered(self.plain, SEED)

    def from_view(self, view: str) -> Ids:
        """The neighbors of changed images among the plain ones, the image itself apart. (M, K)"""
        scores = self.views[view] @ self.plain.T
        scores[np.arange(len(scores)), self.varied] = -np.inf
        return top(scores)

    @cached_property
    def crops(self) -> dict[str, Rows]:
        """Of the neighbors of a crop, the share that the other crop has as well, and less what is chance. (M,) each

        Chance is what crops of other images have in common with it: all, for a network to which all images are alike.
        """
        listed = np.zeros((2, len(self.varied), len(self.plain)))
        for there, view in zip(listed, ("crop-a", "crop-b"), strict=True):
            np.put_along_axis(there, self.from_view(view), 1.0, axis=1)
        common = listed[0] @ listed[1].T / K  # (M, M)
        own = common.diagonal().copy()
        return {"shared": own, "less chance": own - (common.sum(1) - own) / (len(own) - 1)}


def unit(rows: NDArray[Any]) -> Rows:
    rows = rows.astype(np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def top(scores: Rows) -> Ids:
    return np.argsort(-scores, axis=1, kind="stable")[:, :K]


def overlap(a: Ids, b: Ids) -> float:
    """The share of neighbors that two lists have in common, on average over images."""
    return float(np.mean([len(np.intersect1d(x, y)) / K for x, y in zip(a, b, strict=True)]))


def reciprocal_rank(queries: Rows, gallery: Rows, wanted: Ids) -> float:
    scores = queries @ gallery.T
    own = scores[np.arange(len(wanted)), wanted]
    return float(np.mean(1 / (1 + (scores > own[:, None]).sum(1))))


def clustered(rows: Rows, seed: int) -> Ids:
    found: Ids = KMeans(CLUSTERS, n_init=1, max_iter=30, random_state=seed).fit_predict(rows).astype(np.int64)
    return found


def log_mean_exp(values: Rows) -> float:
    return float(np.log(np.mean(np.exp(values))))


def eigenvalues(rows: Rows) -> Rows:
    return np.linalg.svd(rows - rows.mean(0), compute_uv=False) ** 2


# --- criteria ---------------------------------------------------------------------------------------------------------


def rank_me(it: Candidate) -> float:
    """RankMe (Garrido et al., 2023): exp(entropy) of the singular values."""
    values = np.linalg.svd(it.plain, compute_uv=False)
    share = values / values.sum() + 1e-7
    return float(np.exp(-(share * np.log(share)).sum()))


def alpha_req(it: Candidate) -> float:
    """α-ReQ (Agrawal et al., 2022): how near the decay of the spectrum is to 1 / n."""
    values = eigenvalues(it.plain)
    places = np.arange(1, len(values) + 1)
    seen = slice(4, 100)
    slope = np.polyfit(np.log(places[seen]), np.log(values[seen] + 1e-12), 1)[0]
    return -abs(-float(slope) - 1)


def lidar(it: Candidate) -> float:
    """LiDAR (Thilak et al., 2024): effective rank of the LDA matrix, every image a class of its changed views."""
    seen = np.stack([it.plain[it.varied], it.views["crop-a"], it.views["crop-b"], it.views["pasted"]])  # (V, M, D)
    means = seen.mean(0)
    between = np.cov(means.T)
    rest = (seen - means).reshape(-1, seen.shape[2])
    within = rest.T @ rest / len(rest) + 1e-4 * np.eye(seen.shape[2])
    values, vectors = np.linalg.eigh(within)
    root = vectors / np.sqrt(values) @ vectors.T
    spread = np.linalg.eigvalsh(root @ between @ root).clip(0)
    share = spread / spread.sum() + 1e-7
    return float(np.exp(-(share * np.log(share)).sum()))


def uniformity(it: Candidate) -> float:
    upper = it.plain @ it.plain.T
    return -log_mean_exp(2 * 2 * (upper[np.triu_indices(len(upper), 1)] - 1))


def alignment(it: Candidate) -> float:
    return float(np.mean((it.views["crop-a"] * it.views["crop-b"]).sum(1)))


def hubness(it: Candidate) -> float:
    return -float(skew(np.bincount(it.nearest.ravel(), minlength=len(it.plain))))


def mutual(it: Candidate) -> float:
    """The share of neighbors that are so in both directions."""
    return float(np.mean([i in it.nearest[j] for i, row in enumerate(it.nearest) for j in row]))


def transitivity(it: Candidate) -> float:
    """The share of an image's neighbors that are neighbors of its neighbors."""
    return float(np.mean([len(np.intersect1d(it.nearest[j], row)) / K for row in it.nearest for j in row]))


def contrast(it: Candidate) -> float:
    """How far the nearest images stand out from all, in standard deviations of the similarity."""
    finite = it.similarity[np.isfinite(it.similarity)].reshape(len(it.plain), -1)
    best = np.sort(finite, axis=1)[:, -K:].mean(1)
    return float(np.mean((best - finite.mean(1)) / finite.std(1)))


def silhouette(it: Candidate) -> float:
    return float(silhouette_score(it.plain, it.clusters, metric="cosine"))


def cluster_stability(it: Candidate) -> float:
    """Two k-means of two halves that share a third; do they group the shared images alike?"""
    rng, found = np.random.default_rng(SEED), []
    for trial in range(3):
        order = rng.permutation(len(it.plain))
        third = len(order) // 3
        shared, a, b = order[:third], order[third : 2 * third], order[2 * third :]
        groups = [clustered(it.plain[np.concatenate([shared, part])], trial)[:third] for part in (a, b)]
        found.append(adjusted_rand_score(*groups))
    return float(np.mean(found))


def cluster_consistency(it: Candidate) -> float:
    """Are two crops of an image in the same cluster?"""
    centers = unit(np.stack([it.plain[it.clusters == c].mean(0) for c in range(CLUSTERS)]))
    a, b = (np.argmax(it.views[view] @ centers.T, axis=1) for view in ("crop-a", "crop-b"))
    return float(np.mean(a == b))


def pseudo_map(it: Candidate, teacher: Candidate) -> float:
    """mAP with the clusters of another network as labels."""
    return retrieval(it.plain.astype(np.float32), teacher.clusters).score("mAP")


def teacher_through(view: str, teacher: str) -> Callable[[Candidate], float]:
    """From a changed image, how many of the neighbors that another network gives the plain one?"""
    return lambda it: overlap(it.from_view(view), it.others[teacher].nearest[it.varied])


CRITERIA: dict[str, tuple[str, Callable[[Candidate], float]]] = {
    # of the features alone
    "RankMe": ("effective rank", rank_me),
    "α-ReQ": ("−|decay of the spectrum − 1|", alpha_req),
    "LiDAR": ("effective rank between images, relative to within", lidar),
    "uniformity": ("images spread over the sphere", uniformity),
    "alignment": ("two crops alike", alignment),
    "alignment + uniformity": ("their sum", lambda it: alignment(it) + uniformity(it) / 4),
    "hubness": ("few images are everybody's neighbor", hubness),
    "mutual neighbors": ("neighbors in both directions", mutual),
    "transitivity": ("neighbors of neighbors are neighbors", transitivity),
    "contrast": ("the nearest stand out", contrast),
    "silhouette": ("k-means clusters are apart", silhouette),
    "cluster stability": ("k-means of two halves agree", cluster_stability),
    "cluster of two crops": ("two crops fall into one cluster", cluster_consistency),
    # under change
    "other crop found": (
        "a crop finds the other",
        lambda it: reciprocal_rank(it.views["crop-a"], it.views["crop-b"], np.arange(len(it.varied))),
    ),
    "neighbors of two crops": (
        "two crops have the same neighbors",
        lambda it: float(it.crops["shared"].mean()),
    ),
    "the same, on images trained on": (
        "two crops have the same neighbors",
        lambda it: float(it.others["trained"].crops["shared"].mean()),
    ),
    "neighbors of two crops, less chance": (
        "more than crops of different images have",
        lambda it: float(it.crops["less chance"].mean()),
    ),
    "less chance, on images trained on": (
        "more than crops of different images have",
        lambda it: float(it.others["trained"].crops["less chance"].mean()),
    ),
    "pasted found": (
        "on another background it finds itself",
        lambda it: reciprocal_rank(it.views["pasted"], it.plain, it.varied),
    ),
    "neighbors when pasted": (
        "and has the same neighbors",
        lambda it: overlap(it.from_view("pasted"), it.nearest[it.varied]),
    ),
    "background ignored": (
        "the background alone has other neighbors",
        lambda it: -overlap(it.from_view("background"), it.nearest[it.varied]),
    ),
    "object over background": (
        "the two before, one minus the other",
        lambda it: (
            overlap(it.from_view("pasted"), it.nearest[it.varied])
            - overlap(it.from_view("background"), it.nearest[it.varied])
        ),
    ),
    # against others
    "frozen neighbors": ("neighbors as before training", lambda it: overlap(it.nearest, it.others["frozen"].nearest)),
    "frozen neighbors when pasted": ("the same, from another background", teacher_through("pasted", "frozen")),
    "frozen neighbors of crops": ("the same, from a crop", teacher_through("crop-a", "frozen")),
    "frozen clusters": (
        "mAP with the frozen network's clusters as labels",
        lambda it: pseudo_map(it, it.others["frozen"]),
    ),
    "line": ("neighbors as at the end of its training", lambda it: overlap(it.nearest, it.others["end"].nearest)),
    "pooling": ("neighbors as under average pooling", lambda it: overlap(it.nearest, it.others["average"].nearest)),
    "second network": (
        "neighbors as a frozen ResNet-50 has them",
        lambda it: overlap(it.nearest, it.others["judge"].nearest),
    ),
    "second network when pasted": ("the same, from another background", teacher_through("pasted", "judge")),
    "second network's clusters": ("mAP with its clusters as labels", lambda it: pseudo_map(it, it.others["judge"])),
    "consensus": ("neighbors as by the mean of all encoders", lambda it: overlap(it.nearest, top(it.consensus))),
}


# --- the zoo ----------------------------------------------------------------------------------------------------------


def load_zoo(zoo: Path) -> tuple[dict[tuple[str, str], Candidate], Ids]:
    """Every candidate that is there, by encoder and pooling, and the labels."""
    files = {file.stem: file for file in sorted((zoo / "views").glob("*.npz"))}
    found: dict[tuple[str, str], Candidate] = {}
    trained: dict[tuple[str, str], Candidate] = {}
    labels: Ids = np.arange(0)
    for name, file in files.items():
        plain, changed = np.load(zoo / f"{name}.npz"), np.load(file)
        seen = np.load(zoo / "trained" / f"{name}.npz")
        labels = plain["labels"]
        for pooling in (pooling for pooling in POOLINGS if pooling in plain):
            found[name, pooling] = Candidate(unit(plain[pooling]), _views(changed, pooling), changed["varied"])
            own = _views(seen, pooling)
            trained[name, pooling] = Candidate(own.pop("plain"), own, seen["varied"])
    fixed = [it.similarity for (_, pooling), it in found.items() if pooling == FIXED]
    consensus = np.mean([(one - _finite(one).mean()) / _finite(one).std() for one in fixed], axis=0)
    judge = Candidate(unit(np.load(zoo / "judge.npz")[FIXED])) if (zoo / "judge.npz").exists() else None
    for (name, pooling), it in found.items():
        base = pooling if ("frozen", pooling) in found else FIXED
        it.consensus = consensus
        it.others = {
            "frozen": found["frozen", base],
            "end": found[f"{name.rpartition('-')[0]}-1" if name != "frozen" else name, pooling],
            "average": found[name, "average"],
            "trained": trained[name, pooling],
            **({"judge": judge} if judge is not None else {}),
        }
    return found, labels


def _views(features: Mapping[str, NDArray[Any]], pooling: str) -> dict[str, Rows]:
    """``crop-a/gem`` and so on -> ``crop-a`` and so on."""
    return {key.rpartition("/")[0]: unit(features[key]) for key in features if key.endswith(f"/{pooling}")}


def _finite(values: Rows) -> Rows:
    return values[np.isfinite(values)]


def judge_zoo(zoo: Path, file: Path, command: str = "") -> None:
    """Compute what is not in the file yet: every criterion of every candidate, and how well it foretells mAP."""
    candidates, labels = load_zoo(zoo)
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text())["candidates"] if file.exists() else {}
    for (name, pooling), it in candidates.items():
        row = rows.setdefault(f"{name} {pooling}", {"criteria": {}})
        if "mAP" not in row:
            scores = retrieval(it.plain.astype(np.float32), labels)
            row |= {key: round(scores.score(key), 3) for key in ("rank1", "mAP")}
        known = {key: compute for key, (_, compute) in CRITERIA.items() if key not in row["criteria"]}
        row["criteria"] |= {key: round(float(compute(it)), 5) for key, compute in known.items()}
    chosen = {"encoders": {key: row for key, row in rows.items() if key.endswith(f" {FIXED}")}, "all poolings": rows}
    summary = {key: {"candidates": len(part), **_foretold(part)} for key, part in chosen.items()}
    fixed = {name: it for (name, pooling), it in candidates.items() if pooling == FIXED}
    quality = {name: float(rows[f"{name} {FIXED}"]["mAP"]) for name in fixed}
    own = {name: it.others["trained"] for name, it in fixed.items()}
    verdicts = {
        f"{key}, on {where}": verdicts_by_crops(images, quality, key)
        for key in ("shared", "less chance")
        for where, images in (("other images", fixed), ("images trained on", own))
    }
    second = retrieval(fixed["frozen"].others["judge"].plain.astype(np.float32), labels).score("mAP")
    found = {"summary": summary, "verdicts by crops": verdicts, "mAP of the second network": second, "candidates": rows}
    record_measurement({"command": command, "seed": SEED, **found}, file)


def verdicts_by_crops(candidates: Mapping[str, Candidate], quality: Mapping[str, float], key: str) -> dict[str, Any]:
    """Say better or worse than frozen where the interval of the difference in the neighbors of two crops says so."""
    values = {name: it.crops[key] for name, it in candidates.items()}
    found: dict[str, Any] = {"right": 0, "open": 0, "wrong": {}}
    for name in (name for name in candidates if name != "frozen"):
        difference = paired_bootstrap(values["frozen"], values[name])
        gained = quality[name] - quality["frozen"]
        if difference.low <= 0 <= difference.high:
            found["open"] += 1
        elif (difference.mean > 0) == (gained > 0):
            found["right"] += 1
        else:
            found["wrong"][name] = round(gained, 2)
    return found


def _foretold(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    quality = np.array([row["mAP"] for row in rows.values()])
    frozen = rows[f"frozen {FIXED}"]
    found: dict[str, Any] = {"best": float(quality.max()), "frozen": frozen["mAP"]}
    moved = np.abs(quality - frozen["mAP"]) > NOTICED
    for key in CRITERIA:
        values = np.array([row["criteria"][key] for row in rows.values()])
        alike = (values > frozen["criteria"][key]) == (quality > frozen["mAP"])
        found[key] = {
            "right": round(
                100 * float(np.mean(alike[moved])), 1
            ),  # better or worse than frozen: how often rightly said
            "spearman": round(float(spearmanr(values, quality).statistic), 3),
            "lost": round(float(quality.max() - quality[values == values.max()].min()), 2),
        }
    return found


def show(folder: Path) -> None:
    """Print how far each criterion got on each domain."""
    files = [file for file in (folder / f"{domain}.json" for domain in DOMAINS) if file.exists()]
    domains = {file.stem: json.loads(file.read_text())["summary"] for file in files}
    for part, words in (("encoders", f"encoders, all pooled by {FIXED}"), ("all poolings", "encoders × poolings")):
        counts = ", ".join(f"{domain} {summary[part]['candidates']}" for domain, summary in domains.items())
        print(f"\n{words} ({counts}): Spearman with mAP / mAP lost / % right about being better than frozen")
        rows = []
        for key, (meaning, _) in CRITERIA.items():
            found = {domain: summary[part][key] for domain, summary in domains.items()}
            passes = all(one["spearman"] >= ENOUGH and one["lost"] <= ALLOWED for one in found.values())
            cells = {
                domain: f"{one['spearman']:+.2f} / {one['lost']:.1f} / {one['right']:.0f}"
                for domain, one in found.items()
            }
            rows.append({"criterion": key, "meaning": meaning, **cells, "passes": "yes" if passes else "no"})
        print_table(rows)
