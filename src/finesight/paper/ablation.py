"""The experiment of an ablation: its trainings on some data, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.evaluation.evaluate import evaluate_poolings
from finesight.features.encoder import Encoder
from finesight.features.extract import has_objects
from finesight.io.console import console, format_count
from finesight.nn.poolings import BranchPooling, find_pooling
from finesight.paper.ablation_figures import projection_variances, scored_images
from finesight.paper.ablations import ABLATIONS, K_SWEEP, K_SWEEP_APART, KEEP_ALL, Ablation, AblationRow
from finesight.paper.experiment import Experiment, Run, Write, branch_is_detached
from finesight.paper.profiles import PROFILES, Profile, find_profile
from finesight.paper.runs import comparable_settings, epoch_means
from finesight.paper.store import Results, ResultStore, read_json
from finesight.report.demo import RATIONALE, SETTINGS
from finesight.training.config import RuntimeConfig, TrainConfig

LOOKALIKES = "lookalikes"
DRAWN = Profile(name="drawn", words="a small network that begins at random", settings=SETTINGS, rationale=RATIONALE)
TRAINING_METRICS = ("loss", "kl", "kl_target_uniform", "mask_entropy", "embedding_spread", "effective_rank")
CURVES = ("val_rank1", "val_mAP", "kl", "mask_entropy")


@dataclass(frozen=True, kw_only=True)
class AblationExperiment(Experiment):
    """An ablation on some data; every training and seed has one result, with the scores of all its rows."""

    store_option: ClassVar[str] = "--out"
    runs_option: ClassVar[str] = "--out"
    ablation: Ablation
    out: Path
    given: Mapping[str, Any]  # the user's settings
    seeds: tuple[int, ...]
    labeled: bool
    objects: bool  # whether it is known where the objects are

    @property
    def results(self) -> dict[str, str]:
        return {training: training for training in self.ablation.trainings}

    def config(self, training: str, seed: int) -> TrainConfig:
        given = {**self.ablation.settings, **self.given}
        return self.profile.config(self.ablation.trainings[training], data=self.data, seed=seed, given=given)

    @property
    def rows(self) -> list[AblationRow]:
        """The rows that this data can have: without labels one pooling cannot be told from another."""
        rows = [
            row
            for row in self.ablation.rows
            if self.objects or row.pooling is None or not find_pooling(row.pooling).needs_objects
        ]
        return rows if self.labeled else [row for row in rows if row.pooling is None and row.branch is None]

    def pooling(self, row: AblationRow) -> str:
        """Return the pooling of a row: its own, or that of its training, by another branch where the row names one."""
        own = self.config(row.training, self.seeds[0]).pooling
        return row.pooling or (own if row.branch is None else BranchPooling(row.branch, gem=find_pooling(own).gem).name)

    def load(self, run: Run) -> Encoder:
        """Return the trained encoder, its own branch once more for each power of the mask that a row has."""
        encoder = super().load(run)
        rows = [row for row in self.ablation.rows if row.training == run.training]
        powers = {row.branch: row.mask_power for row in rows if row.branch is not None and row.mask_power is not None}
        if not powers or encoder.branch is None:
            return encoder
        return encoder.with_branches({**encoder.extra_branches, **dict.fromkeys(powers, encoder.branch)}, powers)

    def source(self) -> ImageSource:
        source = open_source(self.data)
        classes = self.config(self.ablation.rows[0].training, self.seeds[0]).limit_classes
        return source if classes is None else source.first_classes(classes)

    def is_complete(self, name: str, seed: int, result: Mapping[str, Any]) -> bool:
        parts = {"scores", "end", "epochs", *(["variances"] if name == KEEP_ALL else [])}
        return parts <= result.keys() and {*self._poolings(name)} <= result["scores"].keys()

    def score(self, run: Run, names: Sequence[str], source: ImageSource, write: Write) -> None:
        encoder, epochs = self.encoder(run), epoch_means(self.folder(run))
        poolings, runtime = self._poolings(run.training), self.runtime
        evaluations = {}
        if poolings:
            evaluations = evaluate_poolings(
                encoder,
                source,
                poolings,
                linear=False,
                cache_dir=runtime.cache_dir,
                workers=runtime.workers,
                progress=runtime.progress,
            )
        result = {
            "training": run.training,
            "seed": run.seed,
            "settings": comparable_settings(self.config(*run)),
            "scores": {pooling: evaluations[pooling].scores for pooling in poolings},
            "end": {name: epochs[name][-1][1] for name in TRAINING_METRICS if name in epochs},
            "epochs": {name: epochs[name] for name in CURVES if name in epochs},
        }
        if run.training == KEEP_ALL:
            result["variances"] = projection_variances(encoder, *scored_images(encoder, source, runtime))
        write(run.training, result, None)

    def run_missing(self) -> Results:
        """Train and score what is missing; return all results."""
        self.make(self.missing(self.seeds))
        return self.store.read()

    def _poolings(self, training: str) -> list[str]:
        """Return what a training is scored under: nothing without labels."""
        rows = [row for row in self.rows if row.training == training and self.labeled]
        return list(dict.fromkeys(self.pooling(row) for row in rows))


# --- opening ----------------------------------------------------------------------------------------------------------


def open_ablation(
    name: str,
    data: str,
    out: Path,
    *,
    profile: str | None = None,
    seeds: Sequence[int] = (0,),
    given: Mapping[str, Any] | None = None,
    runtime: RuntimeConfig | None = None,
    report: bool = True,
    lookalikes: LookalikesConfig | None = None,
) -> AblationExperiment:
    """Return an ablation that can run; the built-in birds are drawn last.

    Raises a ``FineSightError`` if options, settings or data do not allow it, or ``out`` holds other results.
    """
    _check_options(name, out, seeds, given or {})
    source = None if data == LOOKALIKES else open_source(data)
    chosen = select_profile(profile, drawn=source is None or source.kind == LOOKALIKES)
    experiment = AblationExperiment(
        command=name,
        ablation=ABLATIONS[name],
        data=out / "data" if source is None else Path(data),
        out=out,
        runs=out / "runs",
        store=ResultStore(out / "evaluations", name_key="training", required=("training", "seed", "settings")),
        profile=chosen,
        given=given or {},
        seeds=tuple(dict.fromkeys(seeds)),
        runtime=runtime or RuntimeConfig(),
        report=report,
        labeled=source is None or (source.labels is not None and bool((source.labels >= 0).any())),
        objects=source is None or has_objects(source),
    )
    if experiment.ablation.keep_share is not None:
        experiment = _with_keep_from(experiment, experiment.ablation.keep_share)
    if experiment.ablation is K_SWEEP and not _one_training_has_every_k(experiment):
        experiment = replace(experiment, ablation=K_SWEEP_APART)
    for training in experiment.ablation.trainings:
        experiment.config(training, experiment.seeds[0])  # refuses settings that are wrong
    experiment.missing(experiment.seeds)  # refuses results of other settings
    if source is None:
        console.print(f"The built-in look-alike birds are drawn into {experiment.data}, unless they are there.")
        make_lookalikes(experiment.data, lookalikes or LookalikesConfig())
    experiment.source()  # refuses data of fewer classes
    return experiment


def _check_options(name: str, out: Path, seeds: Sequence[int], given: Mapping[str, Any]) -> None:
    if bad := [seed for seed in seeds if seed < 0]:
        raise FineSightError(f"--seed takes whole numbers from 0 on, not {bad[0]}.")
    if own := [key for key in ("data", "seed") if key in given]:
        raise FineSightError(f"--set cannot change {own[0]}: give --{own[0]}.")
    if out.exists() and not out.is_dir():
        raise FineSightError(f"{out} is a file: --out must be a folder.")
    results = out / "results.json"
    if results.exists() and (other := read_json(results).get("ablation")) != name:
        raise FineSightError(f"{out} holds the results of {other!r}: give another --out.")


def select_profile(name: str | None, *, drawn: bool) -> Profile:
    """Return the profile of that name; by default ``drawn`` for drawn birds, else ``cpu-50`` with all classes."""
    if name is None and not drawn:
        plain = PROFILES["cpu-50"]
        free = {key: value for key, value in plain.settings.items() if key != "objective.queue"}  # that of 50 classes
        return plain.model_copy(update={"name": "cpu-50 with all classes", "classes": None, "settings": free})
    return find_profile(name or DRAWN.name, {DRAWN.name: DRAWN, **PROFILES})


def _one_training_has_every_k(experiment: AblationExperiment) -> bool:
    """Tell whether no branch affects the encoder, and each is seen in what it pools."""
    config = experiment.config(K_SWEEP.rows[0].training, experiment.seeds[0])
    assert config.rationale is not None
    detached = branch_is_detached(config) and config.rationale.keep == "all"
    steers = config.train_pooling != "average" or "rationale" in (config.focus.source, config.saliency.source)
    pooling = find_pooling(config.pooling)
    pools = pooling.needs_branch and not pooling.per_projection
    return experiment.labeled and detached and pools and not steers


def _with_keep_from(experiment: AblationExperiment, share: float) -> AblationExperiment:
    config = experiment.config(KEEP_ALL, experiment.seeds[0])
    rationale = config.rationale
    assert rationale is not None
    epoch = rationale.keep_from if "rationale.keep_from" in experiment.given else round(share * config.epochs)
    if epoch >= config.epochs:
        raise FineSightError(
            f"Projections would be chosen after {epoch} of {format_count(config.epochs, 'epoch')}, which is too late: "
            "give more epochs (--set epochs=10) or an earlier one (--set rationale.keep_from=1)."
        )
    if rationale.projections < 2 * rationale.keep_count:
        raise FineSightError(
            f"Keeping {rationale.keep_count} projections, or as many others, takes twice as many and there are "
            f"{rationale.projections}: --set rationale.projections or rationale.keep_count."
        )
    return replace(experiment, given={**experiment.given, "rationale.keep_from": epoch})
