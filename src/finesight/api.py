"""The Python API: the steps of the command line as functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finesight.curation.clean import clean as clean_source
from finesight.curation.findings import Cleaning
from finesight.evaluation.compare import Comparison
from finesight.evaluation.compare import compare as compare_encoders
from finesight.evaluation.evaluate import Evaluation
from finesight.evaluation.evaluate import evaluate as evaluate_encoder
from finesight.evaluation.judging import IMAGES
from finesight.features.encoder import Encoder
from finesight.features.encoder_config import EncoderConfig
from finesight.nn.backbone_config import HUB_PREFIX, BackboneConfig
from finesight.nn.feature_map import find_map
from finesight.nn.pixels import own_pixels
from finesight.report.judge import Judge, rewrite_verdict
from finesight.report.run import Run
from finesight.report.train import train_and_report
from finesight.report.verdict import renew_verdict
from finesight.training.candidates import candidate_names, judged_run, open_judging
from finesight.training.config import RuntimeConfig
from finesight.training.presets import plan_training
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import frozen_pooling
from finesight.training.verdict import Kept, Verdict


def load(path: str | Path, *, exact: bool = False) -> Encoder:
    """Return the encoder of a finished run (the run folder, or its ``encoder`` folder), or of ``hf-hub:OWNER/NAME``.

    With ``exact`` a feature does not depend on the images embedded with it in any bit, which is slower on the CPU.
    """
    if str(path).startswith(HUB_PREFIX):
        return Encoder.from_pretrained(str(path), exact=exact)
    return Encoder.load(path, exact=exact)


def train(
    data: str | Path,
    out: str | Path,
    *,
    runtime: RuntimeConfig | None = None,
    restart: bool = False,
    preset: str = "auto",
    minutes: float | None = None,
    **settings: Any,
) -> Encoder:
    """Train on ``data`` into the run folder ``out`` and load what is kept; called again, it continues.

    As ``finesight train`` does, it leaves a verdict and a report there. If training made the features worse, the
    encoder that is returned is the frozen one; ``finesight.verdict(out)`` says so, and can bring the trained one back.

    ``settings`` are those of ``config.yaml``, nested or with dots: ``epochs=20``, ``**{"views.resolution": 112}``.
    Those that are not given are chosen by ``preset`` and fitted to ``minutes``, as ``finesight train`` does.
    """
    runtime, given = runtime or RuntimeConfig(), {"data": str(data), **settings}
    plan = plan_training(given, RunFolder(Path(out)), runtime, preset=preset, minutes=minutes, restart=restart)
    run = train_and_report(plan.config, Path(out), runtime, restart=restart, plan=plan.describe())
    return Encoder.load(run.root)


def open_run(path: str | Path) -> Run:
    """Open the folder of a run to look at its settings, curves, verdict and scores; in a notebook it shows itself.

    Raises ``FineSightError`` if the folder is no run.
    """
    return Run(path)


def compare(a: Encoder | str | Path, b: Encoder | str | Path, data: str | Path, **options: Any) -> Comparison:
    """Return whether ``b`` is better than ``a`` on labeled ``data``, query by query, with 95 % intervals.

    Runs are encoders or folders. ``options`` are those of ``finesight.evaluation.compare.compare``, among them
    ``pooling_a`` and ``pooling_b``. In a notebook, the result shows the scores and the images that changed.
    """
    first = a if isinstance(a, Encoder) else load(a)
    same = not isinstance(a, Encoder) and not isinstance(b, Encoder) and Path(a).resolve() == Path(b).resolve()
    second = first if same else b if isinstance(b, Encoder) else load(b)
    return compare_encoders(first, second, data, **options)


def verdict(run: str | Path, *, keep: Kept | None = None, runtime: RuntimeConfig | None = None) -> Verdict | None:
    """Return whether training helped and which features are kept; None for a run that trained nothing.

    ``keep`` ("trained" or "frozen") is your own choice, which stays whatever the verdict.
    """
    return renew_verdict(RunFolder(Path(run)), runtime, keep=keep)


def evaluate(encoder: Encoder | str | Path, data: str | Path, **options: Any) -> Evaluation:
    """Score an encoder or a run on labeled ``data``: retrieval, kNN, linear probes and localization.

    ``options`` are those of ``finesight.evaluation.evaluate.evaluate_poolings``: ``linear=False`` leaves out the
    linear probes, which take longest. In a notebook, the result shows a table.
    """
    return evaluate_encoder(encoder if isinstance(encoder, Encoder) else load(encoder), data, **options)


def judge(
    a: str | Path,
    b: str | Path | None = None,
    data: str | Path | None = None,
    *,
    images: int = IMAGES,
    runtime: RuntimeConfig | None = None,
) -> Judge:
    """Let a person choose between two candidates, shown blind; in a notebook, the result shows the question.

    A candidate is ``RUN``, ``RUN:POOLING`` or ``RUN:frozen``. A run alone is judged against its frozen network. At most
    ``images`` of ``data`` (by default, what the run was trained on) are embedded. Answers are kept in
    ``judgments.json`` of the second run; calling it again goes on where it was left.
    """
    names = candidate_names(str(a), None if b is None else str(b))
    judging, source = open_judging(names, data, runtime, images=images)
    run = judged_run(names)
    return Judge(judging, source, on_end=None if run is None else lambda decision: rewrite_verdict(run, runtime))


def clean(
    data: str | Path, encoder: Encoder | str | Path | None = None, *, out: str | Path | None = None, **options: Any
) -> Cleaning:
    """Return labels that are probably wrong, copies and outliers; see ``finesight.curation.clean``.

    Without an encoder (or the folder of a run) it is the frozen ResNet-50. ``out`` is a folder for ``report.html``,
    ``clean.csv`` and the features. The result has ``suspects``, ``duplicates``, ``outliers`` and ``to_pandas()``.
    """
    if encoder is None:
        backbone = BackboneConfig()
        encoder = frozen(backbone, pooling=frozen_pooling(backbone.name))
    encoder = encoder if isinstance(encoder, Encoder) else load(encoder)
    return clean_source(data, encoder, out=None if out is None else Path(out), **options)


def frozen(backbone: BackboneConfig, resolution: int | None = None, pooling: str = "average") -> Encoder:
    """Return a network with its weights as they are, the baseline of every training.

    By default images have 224 px, or what is nearest to that of the sizes that the network takes. Their pixels are
    scaled as the network's weights expect.
    """
    if resolution is None:
        resolution = find_map(backbone.name, backbone.output_stride).map.sides.nearest(224)
    settings = EncoderConfig(
        method="frozen",
        resolution=resolution,
        pooling=pooling,
        backbone=backbone,
        **own_pixels(backbone)._asdict(),
    )
    return Encoder.untrained(settings)
