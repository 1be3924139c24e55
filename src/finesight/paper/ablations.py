"""The paper's ablations as data: what each one varies, how its networks are pooled, and where the paper's numbers are.

A row is a training (its settings go on top of the profile's) and a pooling of its network. Nothing heavy is imported:
the command line lists these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from finesight.paper.published import TABLE_1, paper_results

Settings = Mapping[str, Any]
Place = tuple[str | int, ...]  # the way to a number in the paper's tables

OURS, AVERAGE, GEM = "LCR", "average pooling", "GeM pooling"
METRICS = ("rank1", "mAP")  # of the paper's, where it has them
PAPER_SETTING = {"CUB": "CUB-200-2011, 224 px", "Cars": "Stanford Cars, 224 px", "CIFAR100": "CIFAR-100"}


@dataclass(frozen=True)
class Row:
    """A point of a line, or a bar."""

    training: str
    words: str
    series: str = OURS
    x: float | None = None  # None: the same at every place of the axis
    pooling: str | None = None  # None: as the training says
    branch: str | None = None  # pool as the training says, but by this branch beside the network's own
    paper: Mapping[str, Place] = field(default_factory=dict)  # data set -> where its number is


@dataclass(frozen=True)
class Ablation:
    """``settings`` are those of all its trainings; the user's go on top, and those that a training is about on both."""

    title: str
    about: str
    trainings: Mapping[str, Settings]
    rows: tuple[Row, ...]
    figure: Literal["lines", "bars", "epochs"]
    settings: Settings = field(default_factory=dict)
    axis: tuple[str, str] | None = None  # column, words
    log: int | None = None  # of the axis
    keep_share: float | None = None  # of the epochs, after which projections are chosen
    paper: str = ""  # what it says in words only


# --- K ----------------------------------------------------------------------------------------------------------------

PROJECTIONS = (2, 4, 8, 16, 32, 64, 128, 256)
OWN = 32  # the branch of the run itself, when the others are fitted beside it


def _paper_k(k: int) -> dict[str, Place]:
    return {data: ("figures", f"num_projections_{data}", "Ours", "rank1_by_K", str(k)) for data in ("CUB", "CIFAR100")}


_MOCO_K: dict[str, Place] = {data: ("figures", f"num_projections_{data}", "MoCo v2") for data in ("CUB", "CIFAR100")}
_K_TITLE, _K_AXIS = "The number of projections K", ("K", "K, the number of projections")
_K_PAPER = "figures of the number of projections on CUB and CIFAR-100: only these points are in its text."

K_SWEEP = Ablation(
    title=_K_TITLE,
    about="One network a seed: no gradient of a branch reaches it, so those of every K are fitted beside each other.",
    trainings={"all-k": {"rationale.projections": OWN, "rationale.study": tuple(k for k in PROJECTIONS if k != OWN)}},
    rows=(
        *(Row("all-k", f"K = {k}", x=k, branch=None if k == OWN else str(k), paper=_paper_k(k)) for k in PROJECTIONS),
        Row("all-k", AVERAGE, series=AVERAGE, pooling="average", paper=_MOCO_K),
        Row("all-k", GEM, series=GEM, pooling="gem"),
    ),
    figure="lines",
    axis=_K_AXIS,
    log=2,
    paper=_K_PAPER,
)
# For a branch that has a say in the training, or when the training's own numbers are all there is to see.
K_SWEEP_APART = Ablation(
    title=_K_TITLE,
    about="Every K is a training of its own.",
    trainings={f"k{k}": {"rationale.projections": k} for k in PROJECTIONS},
    rows=(
        *(Row(f"k{k}", f"K = {k}", x=k, paper=_paper_k(k)) for k in PROJECTIONS),
        *(Row(f"k{k}", f"K = {k}, {AVERAGE}", series=AVERAGE, x=k, pooling="average") for k in PROJECTIONS),
        *(Row(f"k{k}", f"K = {k}, {GEM}", series=GEM, x=k, pooling="gem") for k in PROJECTIONS),
    ),
    figure="lines",
    axis=_K_AXIS,
    log=2,
    paper=_K_PAPER,
)

# --- the branch's form ------------------------------------------------------------------------------------------------

BRANCH = Ablation(
    title="The form of the fitting branch",
    about="K projections and their maximum (LCR), two layers in its place (MLP), or one projection.",
    trainings={method: {"method": method} for method in ("lcr", "lcr-mlp", "lcr-single")},
    rows=(
        Row(
            "lcr",
            "maximum over projections",
            paper={
                "Cars": ("tab:mlp_main", "Ours", "Cars"),
                "CIFAR100": ("tab:mlp_appendix", "Ours(K=32)", "CIFAR100"),
            },
        ),
        Row(
            "lcr-mlp",
            "MLP",
            paper={"Cars": ("tab:mlp_main", "MLP", "Cars"), "CIFAR100": ("tab:mlp_appendix", "MLP", "CIFAR100")},
        ),
        Row("lcr-single", "a single projection"),
    ),
    figure="bars",
)

# --- ν and the size of the embedding ----------------------------------------------------------------------------------

NUS = (1.0, 0.1, 0.01, 0.001)
DIMS = (64, 128, 256, 512, 1024)

NU = Ablation(
    title="ν, the weight of the rationale's loss",
    about="The branch's gradient reaches the encoder here (rationale.encoder_gradient=1): with an optimizer of its own "
    "and no gradient to the encoder, ν would change nothing.",
    settings={"rationale.encoder_gradient": 1.0},
    trainings={f"nu{nu:g}": {"rationale.nu": nu} for nu in NUS},
    rows=(
        *(
            Row(f"nu{nu:g}", f"ν = {nu:g}", x=nu, paper={"CUB": ("tab:regularization", "Ours", "CUB", place)})
            for place, nu in enumerate(NUS)
        ),
        *(Row(f"nu{nu:g}", f"ν = {nu:g}, {AVERAGE}", series=AVERAGE, x=nu, pooling="average") for nu in NUS),
    ),
    figure="lines",
    axis=("nu", "ν, the weight of L_KL"),
    log=10,
)
DIM = Ablation(
    title="The dimension of the embedding",
    about="The size of what the contrastive loss compares (objective.dim); features are the network's, whatever it is.",
    trainings={f"dim{dim}": {"objective.dim": dim} for dim in DIMS},
    rows=(
        *(
            Row(
                f"dim{dim}",
                f"{dim} dimensions",
                x=dim,
                paper={"CUB": ("tab:dimension", "Ours", "CUB", "rank1", str(dim))},
            )
            for dim in DIMS
        ),
        *(Row(f"dim{dim}", f"{dim} dimensions, {AVERAGE}", series=AVERAGE, x=dim, pooling="average") for dim in DIMS),
    ),
    figure="lines",
    axis=("dim", "dimension of the embedding"),
    log=2,
)

# --- which projections matter -----------------------------------------------------------------------------------------

KEEP_ALL = "keep-all"
WORDS_KEPT = {
    "all": "all projections",
    "top": "those of highest variance",
    "rest": "as many others, at random",
}

PROJECTION_CHOICE = Ablation(
    title="Which projections matter",
    about="Projections are ranked by how much their answer varies over an image. After 60 % of the epochs the maximum "
    "is over all of them, the few of highest variance, or as many others; held-out images are searched every epoch.",
    settings={"validation.fraction": 0.25, "validation.every_n_epochs": 1, "rationale.keep_count": 8},
    trainings={f"keep-{kept}": {"rationale.keep": kept} for kept in WORDS_KEPT},
    rows=tuple(Row(f"keep-{kept}", words, series=words) for kept, words in WORDS_KEPT.items()),
    figure="epochs",
    keep_share=0.6,
    paper="its figure of Aircraft has no numbers in the text.",
)

# --- readings and controls --------------------------------------------------------------------------------------------

_OURS: dict[str, Place] = {"CUB": (TABLE_1, "Ours", "CUB", "retrieval")}
_MOCO: dict[str, Place] = {"CUB": (TABLE_1, "MoCo v2", "CUB", "retrieval")}

READING = Ablation(
    title="Readings of the rationale, and controls",
    about="Each reading is trained and pooled as it says; controls pool the network of the reading finesight. Where "
    "nothing is held out (validation.fraction 0), 'released' hands out its last encoder, not its best. The KL of one "
    "reading is not that of another.",
    trainings={
        "finesight": {"rationale.variant": "finesight"},
        "paper": {"rationale.variant": "paper"},
        "released": {"rationale.variant": "released"},
        "relu-loss": {"rationale.rectify": "relu", "rationale.score": "loss"},
        "relu-negative": {"rationale.rectify": "relu", "rationale.score": "negative_loss"},
    },
    rows=(
        Row("finesight", "reading finesight", paper=_OURS),
        Row("paper", "reading paper", paper=_OURS),
        Row("released", "reading released", paper=_OURS),
        Row("finesight", AVERAGE, series="control", pooling="average", paper=_MOCO),
        Row("finesight", "GeM", series="control", pooling="gem"),
        Row("finesight", "channel energy", series="control", pooling="energy"),
        Row("finesight", "channel energy in GeM", series="control", pooling="energy-gem"),
        Row("finesight", "untrained branch", series="control", branch="untrained"),
        Row("relu-loss", "ReLU of the loss's GradCAM", series="sign"),
        Row("relu-negative", "the same, sign flipped", series="sign"),
        Row("finesight", "box oracle", series="control", pooling="box"),
        Row("finesight", "box oracle in GeM", series="control", pooling="box-gem"),
    ),
    figure="bars",
)

ABLATIONS: dict[str, Ablation] = {
    "k-sweep": K_SWEEP,
    "branch": BRANCH,
    "nu": NU,
    "dim": DIM,
    "projections": PROJECTION_CHOICE,
    "reading": READING,
}


def paper_numbers(row: Row) -> dict[str, dict[str, float]]:
    """Data set -> metric -> the paper's number, as far as it gives them. Of other images at another size than ours."""
    found = {data: _numbers(place) for data, place in row.paper.items()}
    return {data: numbers for data, numbers in found.items() if numbers}


def paper_columns(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """By a row's words: every number of the paper that any of ``rows`` has, None where this one has it not."""
    found = {row.words: paper_numbers(row) for row in rows}
    cells = dict.fromkeys((data, metric) for numbers in found.values() for data in numbers for metric in numbers[data])
    return {
        words: {paper_column(data, metric): numbers.get(data, {}).get(metric) for data, metric in cells}
        for words, numbers in found.items()
    }


def paper_column(data: str, metric: str) -> str:
    return f"paper_{data}_{metric}"


def _numbers(place: Place) -> dict[str, float]:
    here: Any = paper_results()
    for step in place:
        known = step in here if isinstance(here, dict) else True
        if not known:
            return {}
        here = here[step]
    if isinstance(here, dict):
        return {metric: float(here[metric]) for metric in METRICS if metric in here}
    return {"rank1": float(here)}
