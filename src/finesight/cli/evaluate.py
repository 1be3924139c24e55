"""``finesight evaluate``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finesight.cli.options import DATA_HELP, CacheDir, Exact, Half, Json, LimitClasses, PoolingOption, Quiet, Workers
from finesight.errors import FineSightError
from finesight.evaluation.protocols import PROTOCOLS, Protocol
from finesight.io.atomic import WriteError, require_writable

if TYPE_CHECKING:
    from finesight.evaluation.per_class import Row
    from finesight.features.encoder import Encoder


ProtocolChoice = StrEnum("ProtocolChoice", {name: name for name in PROTOCOLS})  # type: ignore[misc]


def evaluate(
    data: Annotated[str | None, typer.Option("--data", help=DATA_HELP)] = None,
    run: Annotated[
        Path | None, typer.Argument(help="The folder of a finished run; none for a frozen backbone.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Without a run: any timm model with a feature map, as it is.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="imagenet, random, a weight file, hf-hub:NAME or timm/NAME.")
    ] = "imagenet",
    resolution: Annotated[
        int | None, typer.Option(help="Pixels (frozen backbone only).  [default: 224, or the nearest it takes]")
    ] = None,
    output_stride: Annotated[int, typer.Option(help="8, 16 or 32 (frozen backbone only).")] = 32,
    stride_in_1x1: Annotated[bool | None, typer.Option(help="Caffe strides (frozen backbone only).")] = None,
    features: Annotated[
        Path | None,
        typer.Option(help="In place of a run: a file of features (.parquet, .arrow, .npz, .csv), made by any program."),
    ] = None,
    pooling: PoolingOption = None,
    protocol: Annotated[
        ProtocolChoice, typer.Option(help="The paper's text, or what its released code does (docs/protocols.md).")
    ] = ProtocolChoice("finesight"),
    linear: Annotated[bool, typer.Option(help="Fit the linear probe too.")] = True,
    knn: Annotated[bool, typer.Option(help="Classify by nearest train images too (not with --no-linear).")] = True,
    fractions: Annotated[str, typer.Option(help="Percentages of the train labels for the probe.")] = "100,50,20",
    labels: Annotated[Path | None, typer.Option(help="A file of label fractions to use instead of drawing.")] = None,
    save_labels: Annotated[Path | None, typer.Option(help="Write the label fractions that are used.")] = None,
    probe_epochs: Annotated[
        int | None, typer.Option(min=1, help="Of the released probe; its steps scale along.  [default: 100]")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Where the released probe keeps how far it is.  [default: the run folder]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of label fractions, folds and probe.")] = 0,
    per_class: Annotated[Path | None, typer.Option(help="Write the scores of every class, the worst first.")] = None,
    limit_classes: LimitClasses = None,
    as_json: Json = False,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    exact: Exact = False,
    half: Half = False,
    quiet: Quiet = False,
) -> None:
    """Score a run, or any backbone as it is: retrieval, linear probe, kNN, attention on the object."""
    if sum(given is not None for given in (run, backbone, features)) != 1:
        raise FineSightError("Give one of these: the folder of a run, --backbone, or --features.")
    if data is None and features is None:
        raise FineSightError("Give --data: a labeled folder of images, a list with labels, or a known dataset.")
    if features is not None and (pooling is not None or str(protocol) != "finesight"):
        raise FineSightError("--pooling and --protocol need the images: features of a file are scored as they are.")
    chosen = PROTOCOLS.find(str(protocol))
    _refuse_idle(chosen, linear, probe_epochs=probe_epochs, state=state, labels=labels)
    percents = _percents(fractions)
    for option, file in (("--save-labels", save_labels), ("--per-class", per_class)):
        _check_folder(option, file)
    if features is not None:
        rules = chosen(labels=labels, save_labels=save_labels, seed=seed)
        rules = rules if knn else dataclasses.replace(rules, knn=())
        _score_file(features, data, linear, percents, rules, limit_classes, per_class, as_json, quiet)
        return
    assert data is not None
    from finesight import api
    from finesight.evaluation.evaluate import evaluate_poolings
    from finesight.features.encoder_folder import warn_of_random
    from finesight.io.console import console, format_count
    from finesight.training.cluster import find_launch, is_main_process, joined
    from finesight.training.config import RuntimeConfig

    frozen = backbone, weights, resolution, output_stride, stride_in_1x1
    encoder = api.load(run) if run is not None else _frozen(*frozen)
    encoder.exact = exact
    if half:
        encoder.use_half_precision()
    warn_of_random(encoder.config.method, encoder.config.backbone.weights)
    if state is None and run is not None and (run / "config.yaml").exists():  # a bare encoder has no such file
        state = run / "probe"
    own: dict[str, Any] = {"probe_epochs": probe_epochs, "state": state}
    settings = {name: value for name, value in own.items() if value is not None and name in _fields(chosen)}
    if not knn:
        settings["knn"] = ()
    name = encoder.config.pooling if pooling is None else str(pooling)
    with joined(RuntimeConfig()):
        results = evaluate_poolings(
            encoder,
            data,
            (name,),
            linear=linear,
            fractions=percents,
            protocol=chosen(labels=labels, save_labels=save_labels, seed=seed, **settings),
            limit_classes=limit_classes,
            cache_dir=cache_dir,
            workers=workers,
            progress=not quiet,
            together=find_launch() is not None,
        )
    if not is_main_process():
        return
    result = results[name]
    if result.cache.skipped:
        first, reason = result.cache.skipped[0]
        skipped = format_count(len(result.cache.skipped), "file was", "files were")
        console.print(f"{skipped} skipped, the first {first}: {reason}")
    if per_class is not None:
        _write_classes(per_class, result.classes)
    if run is not None:
        from finesight.report.run_report import record_evaluation

        try:
            record_evaluation(run, encoder, result)
        except WriteError as error:  # the scores are worth more than the report
            console.print(f"{error} The scores are printed, and not kept with the run.", markup=False)
    if as_json:
        print(json.dumps(result.scores))
        return
    _print(encoder.config.method if run is None else run.name, result.scores)


def _score_file(
    file: Path,
    data: str | None,
    linear: bool,
    percents: tuple[int, ...],
    protocol: Protocol,
    limit_classes: int | None,
    per_class: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    from finesight.evaluation.from_features import evaluate_features

    found = evaluate_features(
        file,
        data,
        linear=linear,
        fractions=percents,
        protocol=protocol,
        limit_classes=limit_classes,
        progress=not quiet,
    )
    if per_class is not None:
        _write_classes(per_class, found.classes)
    if as_json:
        print(json.dumps(found.scores))
        return
    _print(file.name, found.scores)


def _print(name: str, scores: dict[str, Any]) -> None:
    from finesight.evaluation.protocols import setting_words
    from finesight.evaluation.score_table import score_table
    from finesight.io.console import print_table
    from finesight.report.run_report import super_table

    print_table(score_table({name: scores}, intervals=True))
    if "super_categories" in scores:
        print_table(super_table(scores))
    print(setting_words(scores))


def _frozen(
    backbone: str | None, weights: str, resolution: int | None, output_stride: int, stride_in_1x1: bool | None
) -> Encoder:
    from finesight import api
    from finesight.io.console import console
    from finesight.nn.backbone_config import BackboneConfig
    from finesight.training.config import validate_settings

    settings = validate_settings(
        BackboneConfig, name=backbone, weights=weights, output_stride=output_stride, stride_in_1x1=stride_in_1x1
    )
    encoder = api.frozen(settings, resolution)
    console.print(encoder.backbone.load_report)
    return encoder


def _percents(text: str) -> tuple[int, ...]:
    """Return (100, 50, 20) for "100,50,20"."""
    try:
        percents = tuple(int(part) for part in text.split(","))
    except ValueError:
        percents = ()
    if not percents or not all(0 < percent <= 100 for percent in percents) or len(set(percents)) < len(percents):
        raise FineSightError(f"--fractions takes whole percentages from 1 to 100, as 100,50,20, not {text!r}.")
    return percents


def _fields(protocol: type[Protocol]) -> set[str]:
    return {field.name for field in dataclasses.fields(protocol)}


def _refuse_idle(protocol: type[Protocol], linear: bool, **given: Any) -> None:
    """Refuse an option that would do nothing: it is a mistake."""
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is not None and not linear:
            raise FineSightError(f"{option} is about the linear probe, which --no-linear leaves out.")
        if value is not None and name not in _fields(protocol):
            owners = " or ".join(other for other, piece in PROTOCOLS.items() if name in _fields(piece))
            raise FineSightError(f"{option} is about the {owners} probe: give --protocol {owners} too.")


def _check_folder(option: str, file: Path | None) -> None:
    """Refuse a file that cannot be written, before hours of work."""
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        reason = "is a folder" if file.is_dir() else "lies in a folder that does not exist"
        raise FineSightError(f"{option} {file} {reason}: give a file.")
    if file is not None:
        require_writable(file)


def _write_classes(file: Path, classes: list[Row]) -> None:
    from finesight.evaluation.per_class import as_csv
    from finesight.io.atomic import write_atomic

    write_atomic(file, as_csv(classes))
