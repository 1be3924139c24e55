"""``finesight export``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.options import Json, Quiet, RunOrEncoder
from finesight.errors import FineSightError
from finesight.io.console import console

if TYPE_CHECKING:
    from finesight.export.onnx import Exported
    from finesight.export.quantize import Quantized

Format = StrEnum("Format", {"onnx": "onnx", "timm": "timm"})


def export(
    run: RunOrEncoder,
    out: Annotated[Path, typer.Argument(help="The file to write: model.onnx, or model.safetensors for timm.")],
    format: Annotated[
        Format | None,
        typer.Option(help="timm: the backbone's weights, for timm.create_model.  [default: by the name of the file]"),
    ] = None,
    responses: Annotated[bool, typer.Option("--responses", help="What each projection answers, as an output.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Also a file in 8 bits beside it, model.int8.onnx.")] = False,
    calibrate: Annotated[
        str | None, typer.Option(help="For --int8: pictures like those it will see; a folder, a list, a dataset.")
    ] = None,
    calibration_images: Annotated[
        int, typer.Option(min=2, help="Of them, how many set the ranges; as many others judge the result.")
    ] = 64,
    tolerance: Annotated[
        float, typer.Option(min=0, help="The largest difference from PyTorch, relative to the largest value.")
    ] = 1e-3,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a run as one ONNX file (pixels in; feature, plain average and attention out), or its weights for timm."""
    if format == Format.timm or (format is None and out.suffix.lower() == ".safetensors"):
        if int8 or calibrate is not None or responses:
            raise FineSightError("--responses, --int8 and --calibrate are for ONNX files: timm takes weights alone.")
        _export_timm(run, out, as_json)
        return
    if int8 != (calibrate is not None):
        raise FineSightError(
            "--int8 needs --calibrate FOLDER: the ranges of 8-bit activations are measured on pictures."
            if int8
            else "--calibrate is for --int8."
        )
    from finesight.export.onnx import check_target, export_onnx
    from finesight.export.quantize import open_calibration, quantize

    small = out.with_name(f"{out.stem}.int8.onnx")
    check_target(out)
    if calibrate is not None:
        open_calibration(calibrate)  # before the minutes that the fp32 file may take
    whole = export_onnx(run, out, responses=responses, tolerance=tolerance, progress=not quiet)
    less = None
    if calibrate is not None:
        less = quantize(out, small, calibrate, limit=calibration_images, progress=not quiet)
    if as_json:
        print(json.dumps({**whole.summary(), "int8": None if less is None else less.summary()}))
        return
    _print(whole)
    if less is not None:
        _print_int8(less, whole)


def _export_timm(run: Path, out: Path, as_json: bool) -> None:
    from finesight import api
    from finesight.features.timm_model import check_timm_target, export_timm

    check_timm_target(out)
    done = export_timm(api.load(run), out)
    if as_json:
        print(json.dumps(done.summary()))
        return
    print(f"{done.file}: {done.bytes / 2**20:.1f} MiB. φ by timm is off by {done.difference:.1e}. To load it:")
    print(f"  {done.call}")
    if done.untrained:
        console.print(f"As timm initializes them, as they come after φ: {', '.join(done.untrained)}.", markup=False)


def _print(whole: Exported) -> None:
    print(f"{whole.file}: {whole.bytes / 2**20:.1f} MiB. Its largest difference from PyTorch:")
    for each in whole.differences:
        near = "" if each.cosine is None else f", cosine at least {each.cosine:.7f}"
        print(f"  {each.output:<10} {each.absolute:.1e}, relative {each.relative:.1e}{near}")
    for caution in whole.warnings:
        console.print(caution, markup=False)


def _print_int8(less: Quantized, whole: Exported) -> None:
    print(
        f"{less.file}: {less.bytes / 2**20:.1f} MiB ({less.bytes / whole.bytes:.0%}), calibrated on {less.calibrated} "
        f"pictures. On {less.compared} others, beside the fp32 file:"
    )
    print(f"  feature    cosine at least {less.feature_cosine_min:.4f}, median {less.feature_cosine_median:.4f}")
    print(f"  average    cosine at least {less.average_cosine_min:.4f}, median {less.average_cosine_median:.4f}")
    print(f"  attention  off by {less.attention_error:.3f} on average")
    print(
        f"  ranks      the nearest picture is the same for {less.nearest_kept:.0%}, "
        f"as are {less.neighbors_kept:.0%} of the {less.neighbors} nearest"
    )
    for caution in less.warnings():
        console.print(caution, markup=False)
