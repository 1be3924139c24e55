"""``finesight embed``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finesight.cli.options import CacheDir, Cluster, Exact, Half, PoolingOption, Quiet, Run, Workers
from finesight.errors import FineSightError


def embed(
    run: Run,
    images: Annotated[str, typer.Argument(help="A folder of images or a list of paths.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="features.npz, .parquet, .arrow or .csv; with --cluster also a folder.")
    ],
    pooling: PoolingOption = None,
    labels: Annotated[
        bool, typer.Option("--labels", help="Also write label and split of each image, where they are known.")
    ] = False,
    cache_dir: CacheDir = None,
    workers: Workers = None,
    exact: Exact = False,
    half: Half = False,
    cluster: Cluster = None,
    quiet: Quiet = False,
) -> None:
    """Write the feature of every image, with its path, in a stable order."""
    from finesight import api
    from finesight.features.encoder_folder import warn_of_random_weights
    from finesight.features.writing import check_output, embed_images
    from finesight.io.console import console, format_count

    if cluster is None or out.suffix:
        check_output(out)
    name = pooling and str(pooling)
    encoder = api.load(run, exact=exact)
    if half:
        encoder.use_half_precision()
    warn_of_random_weights(run)
    if cluster is not None:
        if half:
            raise FineSightError("--half does not go with --cluster.")
        if labels:
            raise FineSightError("--labels does not go with --cluster: evaluate --features FILE --data DATA has them.")
        from finesight.data.sources import open_source
        from finesight.features.parts_folder import embed_on_cluster

        source = open_source(images)
        written, skipped = embed_on_cluster(cluster, run, encoder, source, out, pooling=name, progress=not quiet)
    else:
        written, skipped = embed_images(
            encoder,
            images,
            out,
            pooling=name,
            cache_dir=cache_dir,
            workers=workers,
            progress=not quiet,
            labels=labels,
        )
    left_out = f"; {format_count(skipped, 'file was', 'files were')} skipped" if skipped else ""
    console.print(f"{format_count(written, 'feature')} in {out}{left_out}")
