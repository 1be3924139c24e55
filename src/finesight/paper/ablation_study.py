"""An ablation on some data: what is to be trained, and whether it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finesight.data.layouts.lookalikes import LookalikesConfig, make_lookalikes
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.features.extract import has_objects
from finesight.io.console import console
from finesight.nn.poolings import BranchPooling, find_pooling
from finesight.paper.ablations import ABLATIONS, K_SWEEP, K_SWEEP_APART, KEEP_ALL, Ablation, Row
from finesight.paper.networks import changed, finished, settings
from finesight.paper.profiles import PROFILES, Profile
from finesight.paper.results import read_json
from finesight.report.demo import RATIONALE, SETTINGS
from finesight.training.config import RuntimeConfig, TrainConfig, build_config
from finesight.training.run_folder import RunFolder

LOOKALIKES = "lookalikes"
DRAWN = Profile(name="drawn", words="a small network that begins at random", settings=SETTINGS, rationale=RATIONALE)


@dataclass(frozen=True)
class Study:
    """An ablation on some data."""

    name: str
    ablation: Ablation
    data: Path
    out: Path
    profile: Profile
    given: Mapping[str, Any]  # the user's settings
    seeds: tuple[int, ...]
    runtime: RuntimeConfig
    labeled: bool
    objects: bool  # is it known where they are?

    def config(self, training: str, seed: int) -> TrainConfig:
        """A profile's settings of the rationale are for our own variant: another is trained as it says."""
        own = self.ablation.trainings[training]
        variant = {**self.given, **own}.get("rationale.variant", "finesight")
        rationale = self.profile.rationale if variant == "finesight" else {}
        values = {"method": "lcr", **self.profile.settings, **rationale, **self.ablation.settings, **self.given, **own}
        return build_config({**values, "data": str(self.data), "seed": seed})

    @property
    def rows(self) -> list[Row]:
        """Those that this data can have: without labels a pooling cannot be told from another."""
        rows = [
            row
            for row in self.ablation.rows
            if self.objects or row.pooling is None or not find_pooling(row.pooling).needs_objects
        ]
        return rows if self.labeled else [row for row in rows if row.pooling is None and row.branch is None]

    def pooling(self, row: Row) -> str:
        own = self.config(row.training, self.seeds[0]).pooling
        return row.pooling or (own if row.branch is None else BranchPooling(row.branch, gem=find_pooling(own).gem).name)

    def run(self, training: str, seed: int) -> RunFolder:
        return RunFolder(self.out / "runs" / f"{training}-seed{seed}")

    def record(self, training: str, seed: int) -> Path:
        return self.out / "evaluations" / f"{training}-seed{seed}.json"

    @property
    def classes(self) -> int | None:
        return self.config(self.ablation.rows[0].training, self.seeds[0]).limit_classes

    def source(self) -> ImageSource:
        source = open_source(self.data)
        return source if self.classes is None else source.first_classes(self.classes)


# --- what to run ------------------------------------------------------------------------------------------------------


def open_study(
    name: str,
    data: str,
    out: Path,
    *,
    profile: str | None = None,
    seeds: Sequence[int] = (0,),
    given: Mapping[str, Any] | None = None,
    runtime: RuntimeConfig | None = None,
) -> Study:
    """Whatever can be wrong is found here, before anything is trained; the built-in birds are drawn last."""
    _check(name, out, seeds, given or {})
    source = None if data == LOOKALIKES else open_source(data)
    chosen = _profile(profile, drawn=source is None or source.kind == LOOKALIKES)
    study = Study(
        name=name,
        ablation=ABLATIONS[name],
        data=out / "data" if source is None else Path(data),
        out=out,
        profile=chosen,
        given={"limit_classes": chosen.classes, **(given or {})},
        seeds=tuple(dict.fromkeys(seeds)),
        runtime=runtime or RuntimeConfig(),
        labeled=source is None or (source.labels is not None and bool((source.labels >= 0).any())),
        objects=source is None or has_objects(source),
    )
    study = _fitting(study)
    _refuse_stale(study)
    if source is None:
        console.print(f"The built-in look-alike birds are drawn into {study.data}, unless they are there.")
        make_lookalikes(study.data, LookalikesConfig())
    study.source()  # has it as many classes?
    return study


def _check(name: str, out: Path, seeds: Sequence[int], given: Mapping[str, Any]) -> None:
    if bad := [seed for seed in seeds if seed < 0]:
        raise FineSightError(f"--seed takes whole numbers from 0 on, not {bad[0]}.")
    if own := [key for key in ("data", "seed") if key in given]:
        raise FineSightError(f"--set cannot change {own[0]}: give --{own[0]}.")
    if out.exists() and not out.is_dir():
        raise FineSightError(f"{out} is a file: --out must be a folder.")
    results = out / "results.json"
    if results.exists() and (other := read_json(results).get("ablation")) != name:
        raise FineSightError(f"{out} holds the results of {other!r}: give another --out.")


def _profile(name: str | None, *, drawn: bool) -> Profile:
    if name is None and not drawn:
        plain = PROFILES["cpu-50"]
        free = {key: value for key, value in plain.settings.items() if key != "objective.queue"}  # that of 50 classes
        return plain.model_copy(update={"name": "cpu-50 with all classes", "classes": None, "settings": free})
    known = {DRAWN.name: DRAWN, **PROFILES}
    if (found := known.get(name or DRAWN.name)) is None:
        raise FineSightError(f"There is no profile {name!r}. There are: {', '.join(known)}.")
    return found


def _fitting(study: Study) -> Study:
    """The ablation as this training and data can have it. Every configuration is built once, to find its errors."""
    if study.ablation.keep_share is not None:
        study = _with_keep_from(study, study.ablation.keep_share)
    if study.ablation is K_SWEEP and not _stands_apart(study):
        study = replace(study, ablation=K_SWEEP_APART)
    for training in study.ablation.trainings:
        study.config(training, study.seeds[0])
    return study


def _stands_apart(study: Study) -> bool:
    """Whether one training can fit every K: no branch has a say in the encoder, and each is seen by what it pools."""
    config = study.config(K_SWEEP.rows[0].training, study.seeds[0])
    rationale = config.rationale
    assert rationale is not None
    silent = rationale.encoder_gradient == 0 and rationale.detach_target and rationale.keep == "all"
    steers = config.train_pooling != "average" or "rationale" in (config.focus.source, config.saliency.source)
    pooling = find_pooling(config.pooling)
    pools = pooling.needs_branch and not pooling.per_projection
    return study.labeled and silent and pools and not steers and config.optim.clip_grad_norm is None


def _with_keep_from(study: Study, share: float) -> Study:
    config = study.config(KEEP_ALL, study.seeds[0])
    rationale = config.rationale
    assert rationale is not None
    epoch = rationale.keep_from if "rationale.keep_from" in study.given else round(share * config.epochs)
    if epoch >= config.epochs:
        raise FineSightError(
            f"Projections would be chosen after {epoch} of {config.epochs} epochs, which is too late: give more epochs "
            "(--set epochs=10) or an earlier one (--set rationale.keep_from=1)."
        )
    if rationale.projections < 2 * rationale.keep_count:
        raise FineSightError(
            f"Keeping {rationale.keep_count} projections, or as many others, takes twice as many and there are "
            f"{rationale.projections}: --set rationale.projections or rationale.keep_count."
        )
    return replace(study, given={**study.given, "rationale.keep_from": epoch})


def _refuse_stale(study: Study) -> None:
    """Rows of other settings would compare the settings."""
    for training, seed in ((training, seed) for training in study.ablation.trainings for seed in study.seeds):
        run, record = study.run(training, seed), study.record(training, seed)
        before = {record: read_json(record).get("settings", {})} if record.exists() else {}
        if finished(run) or run.metrics_file.exists():
            before[run.root] = settings(run.config())
        for place, then in before.items():
            if differences := changed(then, settings(study.config(training, seed))):
                lines = "\n".join(f"  {line}" for line in differences)
                raise FineSightError(f"{place} has other settings:\n{lines}\nDelete it, or give another --out.")
