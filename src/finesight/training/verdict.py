"""Did training help? Better, worse or cannot tell than the frozen network; where it is worse, frozen features are kept.

Evidence comes from labels, on the slice of train that training never saw, else from a user's clicks
(``finesight judge``). Nothing is concluded from the features alone: the best criterion that was found, neighbors of two
crops, is sure of itself and wrong about some encoders (docs/choosing.md). ``RUN/verdict.json`` has the verdict;
``RUN/encoder`` always holds what is kept, and ``RUN/encoder-trained`` the trained encoder where that is not it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from finesight.errors import FineSightError
from finesight.evaluation.bootstrap import paired_bootstrap
from finesight.evaluation.judging import TRAINED, read_decision
from finesight.evaluation.metrics import METRICS
from finesight.evaluation.retrieval import RetrievalScores, retrieval
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import CONFIG, fingerprint
from finesight.features.extract import extract
from finesight.io.atomic import atomic_path, copy_folder, write_atomic
from finesight.io.lock import locked
from finesight.methods.base import find_method
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.run_folder import RunFolder
from finesight.training.run_images import RunImages
from finesight.training.save_encoder import FROZEN_POOLING, frozen_encoder, frozen_poolings
from finesight.training.train_images import encoder_cache, images_again

Answer = Literal["better", "worse", "cannot tell"]
Source = Literal["labels", "clicks", "nothing"]
Kept = Literal["trained", "frozen"]
MIN_QUERIES = 50  # with fewer, a few images decide
DECIDING = ("rank1", "mAP")


class Score(BaseModel):
    """A score in percent with and without training, the difference in points and its 95 % interval."""

    model_config = ConfigDict(frozen=True)

    frozen: float
    trained: float
    difference: float
    low: float
    high: float


class Contrast(BaseModel):
    """The trained encoder against the frozen network under one pooling."""

    model_config = ConfigDict(frozen=True)

    pooling: str
    verdict: Answer
    scores: dict[str, Score]  # rank1 and mAP


class LabelEvidence(BaseModel):
    """What the held-out images say, or why they say nothing."""

    model_config = ConfigDict(frozen=True)

    queries: int = 0  # held-out images with another of their class
    why_not: str | None = None
    same: Contrast | None = None  # frozen, pooled as the trained encoder; by ``FROZEN_POOLING`` if it cannot be
    best: Contrast | None = None  # frozen, under the pooling with its highest mAP


class Verdict(BaseModel):
    """Whether training helped, in words and numbers, and which features are kept: what ``verdict.json`` holds."""

    model_config = ConfigDict(frozen=True)

    verdict: Answer
    by: Source
    words: str
    kept: Kept
    chosen_by_user: bool = False  # then no evidence changes what is kept
    frozen_pooling: str = FROZEN_POOLING  # of the frozen encoder, where it is kept
    labels: LabelEvidence = LabelEvidence()
    trained: str = ""  # fingerprint of the trained encoder
    frozen: str = ""  # of the frozen one, where it is kept


def read_verdict(run: RunFolder | Path) -> Verdict | None:
    """Return the verdict stored with the run; None if there is none, or none that can be read."""
    file = (run.root if isinstance(run, RunFolder) else run) / "verdict.json"
    try:
        return Verdict.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def write_verdict(run: RunFolder, runtime: RuntimeConfig | None = None, *, keep: Kept | None = None) -> Verdict | None:
    """Judge a finished run, arrange what is kept, store the verdict and return it; None if nothing was trained.

    Calling it again changes nothing, or continues where it was killed. Images are embedded once for a trained encoder:
    new clicks are joined with what is stored. ``keep`` is the user's own choice, which stays until another.
    """
    config = run.config()
    if find_method(config.method).objective is None:
        return None
    if not run.is_finished:
        raise FineSightError(f"The run in {run.root} has not finished. Run its `finesight train` command again.")
    with locked(run.root / ".verdict.lock"):
        return _write_verdict(run, config, runtime or RuntimeConfig(), keep)


def _write_verdict(run: RunFolder, config: TrainConfig, runtime: RuntimeConfig, keep: Kept | None) -> Verdict:
    folder = trained_encoder(run)
    own, known = fingerprint(folder), read_verdict(run)
    if known is not None and known.trained != own:
        known = None  # of another training
    labels = known.labels if known is not None else _held_out(config, runtime, folder, RunImages.read(run.images))
    verdict, by, reason = _decide(run, labels)
    chosen = keep is not None or (known is not None and known.chosen_by_user)
    kept = keep or (known.kept if known is not None and chosen else "frozen" if verdict == "worse" else "trained")
    pooling = labels.best.pooling if labels.best is not None else FROZEN_POOLING
    frozen = _arrange(run, config, kept, pooling)
    words = " ".join((reason, _kept_words(run, kept, chosen)))
    made = Verdict(
        verdict=verdict,
        by=by,
        words=words.strip(),
        kept=kept,
        chosen_by_user=chosen,
        frozen_pooling=pooling,
        labels=labels,
        trained=own,
        frozen=frozen,
    )
    if made != read_verdict(run):
        write_atomic(run.verdict, json.dumps(made.model_dump(mode="json"), indent=2) + "\n")
    return made


# --- evidence ---------------------------------------------------------------------------------------------------------


def _held_out(config: TrainConfig, runtime: RuntimeConfig, trained: Path, began: RunImages | None) -> LabelEvidence:
    """Compare on the held-out slice, as far as it has labels."""
    if config.validation.fraction == 0:
        return LabelEvidence(why_not="no images were held out of training (validation.fraction is 0)")
    try:
        source, held_out = images_again(config, runtime, began)
    except FineSightError as error:
        return LabelEvidence(why_not=f"the images cannot be read again: {error}")
    labels = source.labels
    if labels is None or (labels < 0).all():
        return LabelEvidence(why_not="there are no labels")
    queries = _queries(labels[held_out])
    if queries < MIN_QUERIES:
        return LabelEvidence(
            queries=queries,
            why_not=f"only {queries} of {len(held_out)} held-out images have another image of their class among them, "
            f"and at least {MIN_QUERIES} are needed",
        )
    seen = encoder_cache(config, runtime, source, held_out)
    known = seen.source.labels
    assert known is not None
    device = torch.device("cuda" if runtime.accelerator != "cpu" and torch.cuda.is_available() else "cpu")

    def scores(encoder: Encoder, *poolings: str) -> dict[str, RetrievalScores]:
        found = extract(encoder.to(device), seen, np.arange(len(seen)), poolings, progress=runtime.progress)
        return {name: retrieval(found.features[name], known) for name in poolings}

    encoder = Encoder.load(trained)
    own = encoder.config.pooling
    ours = scores(encoder, own)[own]
    frozen = frozen_encoder(config)
    theirs = scores(frozen, *frozen_poolings(frozen))
    return compare_with_frozen(ours, theirs, own)


def _queries(labels: NDArray[np.int64]) -> int:
    """Return how many images have another of their class among these."""
    counts = np.unique(labels[labels >= 0], return_counts=True)[1]
    return int(counts[counts > 1].sum())


def compare_with_frozen(trained: RetrievalScores, frozen: Mapping[str, RetrievalScores], own: str) -> LabelEvidence:
    """Compare query by query with the frozen network under the same and under its best pooling."""
    same = own if own in frozen else FROZEN_POOLING
    best = max(frozen, key=lambda name: (frozen[name].score("mAP"), name == FROZEN_POOLING))
    return LabelEvidence(
        queries=trained.queries, same=_contrast(trained, frozen, same), best=_contrast(trained, frozen, best)
    )


def _contrast(trained: RetrievalScores, frozen: Mapping[str, RetrievalScores], pooling: str) -> Contrast:
    scores = {}
    for key in DECIDING:
        a, b = frozen[pooling], trained
        scale = METRICS[f"retrieval.{key}"].scale
        found = paired_bootstrap(a.per_query[key], b.per_query[key], scale=scale)
        ends = {"difference": found.mean, "low": found.low, "high": found.high}
        scores[key] = Score(frozen=a.score(key), trained=b.score(key), **ends)
    return Contrast(pooling=pooling, verdict=answer(scores.values()), scores=scores)


def answer(scores: Iterable[Score]) -> Answer:
    """Return ``better`` where one score is surely higher and none surely lower, ``worse`` where it is the reverse."""
    known = list(scores)
    higher, lower = any(score.low > 0 for score in known), any(score.high < 0 for score in known)
    return "cannot tell" if higher == lower else "better" if higher else "worse"


def _decide(run: RunFolder, labels: LabelEvidence) -> tuple[Answer, Source, str]:
    """Return the verdict, what it rests on, and both in words: by labels if they decide, else by clicks if these do."""
    clicks = read_decision(run.root)
    by_labels = None if labels.best is None else _label_words(labels, labels.best)
    if labels.best is not None and by_labels is not None and labels.best.verdict != "cannot tell":
        return labels.best.verdict, "labels", by_labels
    if clicks is not None and clicks.winner is not None:
        verdict: Answer = "better" if clicks.winner == TRAINED else "worse"
        return verdict, "clicks", f"{BEGINNINGS[verdict]}: {clicks.words}"
    words = [by_labels or f"Cannot tell yet whether training helped: {labels.why_not}."]
    words += [f"Clicks: {clicks.words}"] if clicks is not None else []
    words += [
        f"`finesight judge {quote(str(run.root))}` asks you: "
        "about 140 clicks decide a difference of 10 points, 350 one of 5."
    ]
    return "cannot tell", "nothing" if by_labels is None else "labels", " ".join(words)


BEGINNINGS: dict[Answer, str] = {
    "better": "Training helped",
    "worse": "Training did not help",
    "cannot tell": "Cannot tell whether training helped",
}


def _label_words(labels: LabelEvidence, best: Contrast) -> str:
    words = (
        f"{BEGINNINGS[best.verdict]}: on {labels.queries:,} held-out images {_score_words(best)}. "
        f"Without training the best pooling is {best.pooling}."
    )
    same = labels.same
    if same is not None and same.pooling != best.pooling:
        words += f" Against {same.pooling}: {_score_words(same)}."
    return words


def _score_words(contrast: Contrast) -> str:
    return " and ".join(
        f"{name} is {score.trained:.1f} % with training, {score.frozen:.1f} % without "
        f"({score.difference:+.1f} points, 95 % interval {score.low:+.1f} to {score.high:+.1f})"
        for name, score in zip(("rank-1", "mAP"), (contrast.scores[key] for key in DECIDING), strict=True)
    )


# --- what is kept -----------------------------------------------------------------------------------------------------


def trained_encoder(run: RunFolder) -> Path:
    """Return the folder of what training left, wherever the verdict put it."""
    return run.trained_encoder if _holds_frozen(run) else run.encoder


def _holds_frozen(run: RunFolder) -> bool:
    """Return whether ``RUN/encoder`` is the frozen network although the run trained one."""
    return (run.trained_encoder / CONFIG).exists() and _encoder_setting(run, "method") == "frozen"


def _encoder_setting(run: RunFolder, name: str) -> str | None:
    try:
        return str(json.loads((run.encoder / CONFIG).read_text())[name])
    except (OSError, ValueError, KeyError):
        return None


def _arrange(run: RunFolder, config: TrainConfig, kept: Kept, pooling: str) -> str:
    """Put what is kept into ``RUN/encoder``. At every moment the trained encoder is whole in one place or the other.

    Returns the fingerprint of the frozen encoder, where that is kept.
    """
    if kept == "trained":
        if _holds_frozen(run):
            _copy(run.trained_encoder, run.encoder)
        shutil.rmtree(run.trained_encoder, ignore_errors=True)
        return ""
    if not _holds_frozen(run):
        _copy(run.encoder, run.trained_encoder)
    if not _holds_frozen(run) or _encoder_setting(run, "pooling") != pooling:
        frozen_encoder(config, pooling).save(run.encoder)
    return fingerprint(run.encoder)


def _copy(source: Path, target: Path) -> None:
    with atomic_path(target, replace_folder=True) as scratch:
        copy_folder(source, scratch)


def _kept_words(run: RunFolder, kept: Kept, chosen: bool) -> str:
    if kept == "trained":
        return "The trained features are kept, as you chose." if chosen else ""
    return (
        f"The frozen features are kept{', as you chose' if chosen else ''}; "
        f"`finesight verdict {quote(str(run.root))} --keep trained` brings back the trained ones."
    )
