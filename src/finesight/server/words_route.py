"""The route /api/words: search by words, where a CLIP-like network made the index."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import Field

from finesight.search.by_words import search_words
from finesight.server.parameters import ItemFilter
from finesight.server.routes import Service, answer, problems
from finesight.server.schemas import ResponseModel, SearchHit, Took
from finesight.server.service import SearchService

words_router = APIRouter(prefix="/api", responses=problems())


class WordsOptions(ItemFilter):
    """A search by words."""

    words: str = Field(min_length=1, max_length=200, pattern=r"\S", examples=["a bird on water"])
    k: int = Field(24, ge=1, le=200, description="Hits wanted.")


class WordsResult(ResponseModel):
    words: str
    by: str
    hits: list[SearchHit]
    took: Took


@words_router.get(
    "/words", response_model=WordsResult, responses=problems(404), summary="Search by words, with `--text-model`"
)
async def words(request: Request, service: Service, options: Annotated[WordsOptions, Query()]) -> Response:
    """404 where the server has no text model, or the index was made anew by another network."""
    return answer(await service.network.run(request, lambda: find(service, options)))


def find(service: SearchService, options: WordsOptions) -> WordsResult:
    """Return the images that fit the words best, or raise 404."""
    features = service.features.get()
    if service.tower is None or service.tower.fingerprint != features.fingerprint:
        raise HTTPException(404, "This server cannot search by words: start it with --text-model.")
    if not options.words.split():
        raise HTTPException(422, "words: There are no words to search by.")
    found = search_words(
        features.index, service.tower, options.words, options.k, among=service.collection.among(options)
    )
    notes = service.collection.notes.all()
    hits = [SearchHit(**service.collection.fields(hit, notes), score=hit.score) for hit in found.hits]
    took = Took(embed_ms=round(found.embed_ms, 3), search_ms=round(found.search_ms, 3))
    return WordsResult(words=options.words, by=found.space, hits=hits, took=took)
