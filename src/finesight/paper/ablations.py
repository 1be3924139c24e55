"""The paper's ablations as data: what each one varies, how its rows are pooled, and where the paper's numbers are.

Nothing heavy is imported: the command line lists these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from finesight.paper.published import TABLE_1, Place, look_up, paper_results
from finesight.paper.rows import Training

OURS, AVERAGE, GEM, ENERGY_GEM = "LCR", "average pooling", "GeM pooling", "channel energy in GeM"
METRICS = ("rank1", "mAP")  # of the paper's, where it has them
PAPER_SETTING = {"CUB": "CUB-200-2011, 224 px", "Cars": "Stanford Cars, 224 px", "CIFAR100": "CIFAR-100"}


@dataclass(frozen=True)
class AblationRow:
    """One scored line of an ablation: a training under a pooling, drawn as a point of a line or as a bar."""

    training: str
    label: str
    series: str = OURS
    x: float | None = None  # None: the same all along the axis
    pooling: str | None = None  # None: the training's own
    branch: str | None = None  # the training's own pooling, but by this branch beside its own
    mask_power: float | None = None  # that branch is the training's own, with its mask to this power
    paper: Mapping[str, Place] = field(default_factory=dict)  # dataset -> where the paper's number is


@dataclass(frozen=True)
class Ablation:
    """What is varied and how it is shown. ``settings`` are those of all trainings; the user's are above them, and those
    of a training above both."""

    title: str
    about: str
    trainings: Mapping[str, Training]
    rows: tuple[AblationRow, ...]
    figure: Literal["lines", "bars", "epochs"]
    settings: Mapping[str, Any] = field(default_factory=dict)
    axis: tuple[str, str] | None = None  # column, label
    log: int | None = None  # base of a logarithmic axis
    keep_share: float | None = None  # of the epochs, after which projections are selected
    paper: str = ""  # what the paper says in words only


# --- K ----------------------------------------------------------------------------------------------------------------

PROJECTIONS = (2, 4, 8, 16, 32, 64, 128, 256)
OWN = 32  # the branch of the run itself, when the others are trained beside it


def _with_controls(x: Mapping[str, float], label: str, paper: Sequence[Mapping[str, Place]], *pools: str) -> Any:
    """Return the rows of trainings along an axis: as they are, and under poolings that learn nothing."""
    names = {"average": AVERAGE, "gem": GEM}
    own = [AblationRow(v, label.format(at), x=at, paper=p) for (v, at), p in zip(x.items(), paper, strict=True)]
    controls = [
        AblationRow(v, f"{label.format(at)}, {names[pool]}", series=names[pool], x=at, pooling=pool)
        for pool in pools
        for v, at in x.items()
    ]
    return (*own, *controls)


_FIGURES = {data: ("figures", f"num_projections_{data}") for data in ("CUB", "CIFAR100")}
_PAPER_K: list[dict[str, Place]] = [
    {data: (*place, "Ours", "rank1_by_K", str(k)) for data, place in _FIGURES.items()} for k in PROJECTIONS
]
_PAPER_MOCO: dict[str, Place] = {data: (*place, "MoCo v2") for data, place in _FIGURES.items()}
_STUDIED = tuple(k for k in PROJECTIONS if k != OWN)
K_SWEEP = Ablation(
    title="The number of projections K",
    about="One network a seed: no gradient of a branch reaches it, so those of every K are fitted beside each other.",
    trainings={"all-k": Training(settings={"rationale.projections": OWN, "rationale.study": _STUDIED})},
    rows=(
        *(
            AblationRow("all-k", f"K = {k}", x=k, branch=str(k) if k in _STUDIED else None, paper=paper)
            for k, paper in zip(PROJECTIONS, _PAPER_K, strict=True)
        ),
        AblationRow("all-k", AVERAGE, series=AVERAGE, pooling="average", paper=_PAPER_MOCO),
        AblationRow("all-k", GEM, series=GEM, pooling="gem"),
    ),
    figure="lines",
    axis=("K", "K, the number of projections"),
    log=2,
    paper="figures of the number of projections on CUB and CIFAR-100: only these points are in its text.",
)
# For a branch that affects the encoder, or when the training's own metrics are all there is to see.
K_SWEEP_APART = replace(
    K_SWEEP,
    about="Every K is a training of its own.",
    trainings={f"k{k}": Training(settings={"rationale.projections": k}) for k in PROJECTIONS},
    rows=_with_controls({f"k{k}": k for k in PROJECTIONS}, "K = {:g}", _PAPER_K, "average", "gem"),
)

# --- the branch's form ------------------------------------------------------------------------------------------------


def _paper_mlp(cars: str, cifar: str) -> dict[str, Place]:
    return {"Cars": ("tab:mlp_main", cars, "Cars"), "CIFAR100": ("tab:mlp_appendix", cifar, "CIFAR100")}


BRANCH = Ablation(
    title="The form of the fitting branch",
    about="K projections and their maximum (LCR), two layers in its place (MLP), or one projection.",
    trainings={method: Training(method) for method in ("lcr", "lcr-mlp", "lcr-single")},
    rows=(
        AblationRow("lcr", "maximum over projections", paper=_paper_mlp("Ours", "Ours(K=32)")),
        AblationRow("lcr-mlp", "MLP", paper=_paper_mlp("MLP", "MLP")),
        AblationRow("lcr-single", "a single projection"),
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
    trainings={f"nu{nu:g}": Training(settings={"rationale.nu": nu}) for nu in NUS},
    rows=_with_controls(
        {f"nu{nu:g}": nu for nu in NUS},
        "ν = {:g}",
        [{"CUB": ("tab:regularization", "Ours", "CUB", index)} for index in range(len(NUS))],
        "average",
    ),
    figure="lines",
    axis=("nu", "ν, the weight of L_KL"),
    log=10,
)
DIM = Ablation(
    title="The dimension of the embedding",
    about="The size of what the contrastive loss compares (objective.dim); features are the network's, whatever it is.",
    trainings={f"dim{dim}": Training(settings={"objective.dim": dim}) for dim in DIMS},
    rows=_with_controls(
        {f"dim{dim}": dim for dim in DIMS},
        "{} dimensions",
        [{"CUB": ("tab:dimension", "Ours", "CUB", "rank1", str(dim))} for dim in DIMS],
        "average",
    ),
    figure="lines",
    axis=("dim", "dimension of the embedding"),
    log=2,
)

# --- which projections matter -----------------------------------------------------------------------------------------

KEEP_ALL = "keep-all"
KEPT = {
    "all": "all projections",
    "top": "those of highest variance",
    "rest": "as many others, at random",
}

PROJECTION_CHOICE = Ablation(
    title="Which projections matter",
    about="Projections are ranked by how much their answer varies over an image. After 60 % of the epochs the maximum "
    "is over all of them, the few of highest variance, or as many others; held-out images are searched every epoch.",
    settings={"validation.fraction": 0.25, "validation.every_n_epochs": 1, "rationale.keep_count": 8},
    trainings={f"keep-{kept}": Training(settings={"rationale.keep": kept}) for kept in KEPT},
    rows=tuple(AblationRow(f"keep-{kept}", label, series=label) for kept, label in KEPT.items()),
    figure="epochs",
    keep_share=0.6,
    paper="its figure of Aircraft has no numbers in the text.",
)

# --- the power of the mask --------------------------------------------------------------------------------------------

POWERS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
MASK_POWER = Ablation(
    title="The power of the mask",
    about="A' of Eq. 8 is taken to a power before it pools: above 1 it keeps to the key parts, and to the power 0 it "
    "would be GeM. One network and one branch a seed: the power changes neither.",
    trainings={"lcr": Training("lcr")},
    rows=(
        *(AblationRow("lcr", f"power {p:g}", x=p, branch=f"power-{p:g}", mask_power=p) for p in POWERS),
        AblationRow("lcr", AVERAGE, series=AVERAGE, pooling="average"),
        AblationRow("lcr", GEM, series=GEM, pooling="gem"),
        AblationRow("lcr", ENERGY_GEM, series=ENERGY_GEM, pooling="energy-gem"),
    ),
    figure="lines",
    axis=("power", "power of the mask"),
    log=2,
    paper="no power is in Eq. 8: it is 1.",
)

# --- variants of the rationale and controls ---------------------------------------------------------------------------

_OURS: dict[str, Place] = {"CUB": (TABLE_1, "Ours", "CUB", "retrieval")}
_MOCO: dict[str, Place] = {"CUB": (TABLE_1, "MoCo v2", "CUB", "retrieval")}

RATIONALE_VARIANTS = Ablation(
    title="Readings of the rationale, and controls",
    about="Each reading is trained and pooled as it says; controls pool the network of the reading finesight. Where "
    "nothing is held out (validation.fraction 0), 'released' hands out its last encoder, not its best. The KL of one "
    "reading is not that of another.",
    trainings={
        **{name: Training(settings={"rationale.variant": name}) for name in ("finesight", "paper", "released")},
        "relu-loss": Training(settings={"rationale.rectify": "relu", "rationale.score": "loss"}),
        "relu-negative": Training(settings={"rationale.rectify": "relu", "rationale.score": "negative_loss"}),
    },
    rows=(
        AblationRow("finesight", "reading finesight", paper=_OURS),
        AblationRow("paper", "reading paper", paper=_OURS),
        AblationRow("released", "reading released", paper=_OURS),
        AblationRow("finesight", AVERAGE, series="control", pooling="average", paper=_MOCO),
        AblationRow("finesight", "GeM", series="control", pooling="gem"),
        AblationRow("finesight", "channel energy", series="control", pooling="energy"),
        AblationRow("finesight", "channel energy in GeM", series="control", pooling="energy-gem"),
        AblationRow("finesight", "untrained branch", series="control", branch="untrained"),
        AblationRow("relu-loss", "ReLU of the loss's GradCAM", series="sign"),
        AblationRow("relu-negative", "the same, sign flipped", series="sign"),
        AblationRow("finesight", "box oracle", series="control", pooling="box"),
        AblationRow("finesight", "box oracle in GeM", series="control", pooling="box-gem"),
    ),
    figure="bars",
)

ABLATIONS: dict[str, Ablation] = {
    "k-sweep": K_SWEEP,
    "branch": BRANCH,
    "nu": NU,
    "dim": DIM,
    "projections": PROJECTION_CHOICE,
    "mask-power": MASK_POWER,
    "reading": RATIONALE_VARIANTS,
}


def paper_numbers(row: AblationRow) -> dict[str, dict[str, float]]:
    """Return dataset -> metric -> the paper's number, where it has one. Its images are larger than ours."""
    values = {data: look_up(paper_results(), place) for data, place in row.paper.items()}
    numbers = {data: value if isinstance(value, dict) else {"rank1": value} for data, value in values.items()}
    known = {
        data: {metric: float(metrics[metric]) for metric in METRICS if metrics.get(metric) is not None}
        for data, metrics in numbers.items()
    }
    return {data: metrics for data, metrics in known.items() if metrics}


def paper_columns(rows: Sequence[AblationRow]) -> dict[str, dict[str, float | None]]:
    """Return, by a row's label, every number of the paper that any of ``rows`` has; None where this row has none."""
    numbers = {row.label: paper_numbers(row) for row in rows}
    cells = dict.fromkeys((data, metric) for own in numbers.values() for data in own for metric in own[data])
    return {
        label: {paper_column(data, metric): own.get(data, {}).get(metric) for data, metric in cells}
        for label, own in numbers.items()
    }


def paper_column(data: str, metric: str) -> str:
    return f"paper_{data}_{metric}"
