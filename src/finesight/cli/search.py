"""``finesight search``: parse, call, print. Heavy imports live inside the functions, so that --help is quick."""

from __future__ import annotations

import json
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finesight.cli.options import By, Exact, IndexUri, Json
from finesight.errors import FineSightError
from finesight.io.console import printable, without_password

if TYPE_CHECKING:
    from finesight.search.searcher import Answer

EngineName = StrEnum("EngineName", {"torch": "torch", "onnx": "onnx"})
Engine = Annotated[
    EngineName | None,
    typer.Option(help="What sees the queries; onnx needs no torch.  [default: torch where it is installed]"),
]
Model = Annotated[Path | None, typer.Option(help="With onnx: the exported file, if not beside the index.")]
TextModel = Annotated[
    str | None,
    typer.Option(
        envvar="FINESIGHT_TEXT_MODEL",
        help="To search by words: the CLIP model whose image side made the index, as open_clip has it; a folder, or "
        "hf-hub:OWNER/NAME.",
    ),
]
Run = Annotated[
    Path | None, typer.Option(help="A copy of the run that made the index if the encoder is not where it was (Milvus).")
]


def search(
    where: IndexUri,
    queries: Annotated[list[Path] | None, typer.Argument(help="Pictures to look for.")] = None,
    words: Annotated[list[str] | None, typer.Option(help="Words to look for, with --text-model.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=10_000, help="Hits for each.")] = 10,
    by: By = None,
    box: Annotated[
        str | None, typer.Option(help="Only this part of the query: x,y,width,height as shares of it.")
    ] = None,
    diversity: Annotated[float, typer.Option(min=0, max=1, help="0: nearest first; more: hits that differ.")] = 0.0,
    min_score: Annotated[float | None, typer.Option(help="No hit with a lower cosine.")] = None,
    engine: Engine = None,
    model: Model = None,
    text_model: TextModel = None,
    run: Run = None,
    exact: Exact = False,
    as_json: Json = False,
) -> None:
    """Find the images of an index that look most like a picture, or fit words best."""
    from finesight.features.encoder_folder import warn_of_random
    from finesight.features.preprocess import parse_box
    from finesight.features.text_tower import TextTower
    from finesight.search.by_words import search_words
    from finesight.search.engines import open_index
    from finesight.search.open_embedder import open_embedder
    from finesight.search.searcher import Searcher

    kind = engine_for(engine, model, run)
    if run is not None and engine == EngineName.onnx:
        raise FineSightError("--run is for --engine torch: give onnx the exported file by --model.")
    part = None if box is None else parse_box(box)
    if not queries and not words:
        raise FineSightError("There is nothing to look for: give a picture, or words with --words.")
    if words and text_model is None:
        raise FineSightError("--words needs --text-model: the CLIP model whose image side made the index.")
    if words and (part is not None or by is not None or diversity):
        raise FineSightError("--box, --by and --diversity are for pictures: leave them out with --words.")
    with closing(open_index(where)) as index:
        if not len(index):
            raise FineSightError(f"The index {without_password(where)} is empty: add images with `finesight index`.")
        embedder = open_embedder(kind, index, model or run, exact=exact)
        searcher = Searcher(index, embedder)
        warn_of_random(embedder.facts.method, embedder.facts.weights)
        answers: list[tuple[Path | str, Answer]] = [
            (query, searcher.by_picture(query, k, by=by, box=part, diversity=diversity, min_score=min_score))
            for query in queries or ()
        ]
        if words and text_model is not None:
            tower = TextTower.load(text_model, embedder)
            answers += [(text, search_words(index, tower, text, k, min_score=min_score)) for text in words]
        root = index.meta.root
    if as_json:
        facts = {"index": without_password(where), "root": printable(root)}
        print(json.dumps({**facts, "results": [_result(*one) for one in answers]}))
        return
    for query, answer in answers:
        _print(query, answer)


def engine_for(engine: EngineName | None, model: Path | None, run: Path | None) -> str | None:
    """Return the engine that the options of ``search`` and ``serve`` mean, None where the index decides."""
    if model is not None and engine == EngineName.torch:
        raise FineSightError("--model is for --engine onnx: torch uses the encoder kept with the index.")
    if run is not None and model is not None:
        raise FineSightError("--run is for --engine torch: give onnx the exported file by --model.")
    if engine is not None:
        return str(engine)
    return "onnx" if model is not None else None


def _result(query: Path | str, answer: Answer) -> dict[str, object]:
    view = answer.view  # words have none
    return {
        "query" if view is not None else "words": printable(str(query)),
        "by": answer.space,
        **({} if view is None else {"view": dict(zip(("x", "y", "width", "height"), view.box, strict=True))}),
        "hits": [{"id": str(hit.id), "path": printable(hit.path), "score": round(hit.score, 6)} for hit in answer.hits],
        "took": {"embed_ms": round(answer.embed_ms, 2), "search_ms": round(answer.search_ms, 2)},
    }


def _print(query: Path | str, answer: Answer) -> None:
    print(f"{printable(str(query))} (by {answer.space}):")
    if not answer.hits:
        print("  nothing: no image of the index reaches --min-score")
    for place, hit in enumerate(answer.hits, 1):
        print(f"{place:4d}  {hit.score:7.4f}  {printable(hit.path)}")
