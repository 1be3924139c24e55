"""What may be asked, and in which words a wrong question is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import HTTPException, Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from finesight.errors import FineSightError
from finesight.features.preprocess import parse_box
from finesight.features.types import Box

ITEM = "^[0-9]{1,16}$"
ITEM_OR_QUERY = "^([0-9]{1,16}|q[0-9a-f]{16})$"
BOX = r"^[0-9.eE+-]+(,[0-9.eE+-]+){3}$"
UPLOADED = "An item id, or the q… id of a picture that was uploaded."


def _given(value: object) -> object:
    """An empty name is none given. Numbers and boxes must not be empty: no schema could say so."""
    return None if value == "" else value


Empty = BeforeValidator(_given)
ItemPath = Annotated[str, Path(pattern=ITEM, description="An item id.", examples=["1"])]
AnyPath = Annotated[str, Path(pattern=ITEM_OR_QUERY, description=UPLOADED, examples=["1"])]


By = Annotated[
    str | None,
    Field(max_length=40, description="The pooling, one of `spaces`; by default the encoder's own."),
    Empty,
]
BoxText = Annotated[
    str | None,
    Field(
        max_length=100,
        pattern=BOX,
        description="Only this part of the query: x,y,width,height as shares of the picture.",
        examples=["0.25,0.1,0.5,0.4"],
    ),
]
AnyQuery = Annotated[str, Field(pattern=ITEM_OR_QUERY, description=UPLOADED, examples=["1"])]


class SearchOptions(BaseModel):
    """The same for uploads and for images of the index."""

    model_config = ConfigDict(frozen=True)

    k: int = Field(24, ge=1, le=200, description="Hits wanted.")
    by: By = None
    box: BoxText = None
    diversity: float = Field(
        0.0, ge=0, le=1, allow_inf_nan=False, description="0: the most alike; more: hits that differ from one another."
    )
    min_score: float | None = Field(
        None, ge=-1, le=1, allow_inf_nan=False, description="Leave out hits below this score."
    )


class SearchById(SearchOptions):
    query: AnyQuery


class ExplainOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    query: AnyQuery
    hit: AnyQuery
    by: By = None
    box: BoxText = None


class ClusterOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    method: Literal["kmeans", "hdbscan"] = Field("kmeans", description="hdbscan finds the number by itself.")
    count: int | None = Field(None, ge=2, le=500, description="Of clusters (kmeans).")


class Page(BaseModel):
    model_config = ConfigDict(frozen=True)

    offset: int = Field(0, ge=0, le=2**40)
    limit: int = Field(100, ge=1, le=500)


class ItemsPage(Page):
    text: Annotated[str | None, Field(max_length=200, description="In the path, in any case."), Empty] = None


class ClusterPage(ClusterOptions, Page):
    pass


def from_form(fields: Mapping[str, str]) -> SearchOptions:
    """Of an upload; 422 in words."""
    try:
        return SearchOptions.model_validate(fields)
    except ValidationError as error:
        raise HTTPException(422, words(error.errors())) from None


def words(errors: Any) -> str:
    """The first of pydantic's complaints as a sentence."""
    first = errors[0]
    name = str(first["loc"][-1]) if first["loc"] else "request"
    return f"{name}: {first['msg'].rstrip('.')}."


def box_of(text: str | None) -> Box | None:
    try:
        return None if text is None else parse_box(text)
    except FineSightError as error:
        raise HTTPException(422, str(error)) from None


def multipart_body() -> dict[str, Any]:
    """How the upload is described: FastAPI does not read it, so it cannot know."""
    properties: dict[str, Any] = {
        "file": {"type": "string", "format": "binary", "description": "JPEG, PNG, WebP, GIF, BMP or TIFF."}
    }
    for name, schema in SearchOptions.model_json_schema()["properties"].items():
        kinds = [kind for kind in schema.get("anyOf", [{}]) if kind.get("type") != "null"]
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "title", "default")}
        default = {} if schema.get("default") is None else {"default": schema["default"]}
        properties[name] = {**kinds[0], **rest, **default}
    schema = {"type": "object", "required": ["file"], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
