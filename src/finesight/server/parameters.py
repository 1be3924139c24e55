"""Models of the parameters that the API takes, and the sentences that refuse a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import HTTPException, Path
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from finesight.errors import FineSightError
from finesight.features.preprocess import parse_box
from finesight.features.types import Box
from finesight.server.images import ACCEPTED
from finesight.server.schemas import ITEM_ID_PATTERN, FeaturesName

ANY_ID_PATTERN = "^([0-9]{1,16}|q[0-9a-f]{16})$"
BOX_PATTERN = r"^[0-9.eE+-]+(,[0-9.eE+-]+){3}$"
DAY_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
PATTERN_WORDS = {
    DAY_PATTERN: "A day is written as 2024-05-31",
    ITEM_ID_PATTERN: "An id is a number of up to 16 digits",
    ANY_ID_PATTERN: "An id is a number of up to 16 digits, or that of an upload, which begins with q",
    BOX_PATTERN: "A box is four numbers, x,y,width,height, for example 0.25,0.1,0.5,0.4",
}
ITEM_OR_UPLOAD = "An item id, or the q… id of a picture that was uploaded."

# An empty text counts as none. Numbers and boxes must not be empty, because no schema could say so.
EmptyIsNone = BeforeValidator(lambda value: None if value == "" else value)
ItemIdPath = Annotated[str, Path(pattern=ITEM_ID_PATTERN, description="An item id.", examples=["1"])]
AnyIdPath = Annotated[str, Path(pattern=ANY_ID_PATTERN, description=ITEM_OR_UPLOAD, examples=["1"])]
By = Annotated[
    str | None,
    Field(max_length=40, description="The pooling, one of `spaces`; by default the encoder's own."),
    EmptyIsNone,
]
BoxText = Annotated[
    str | None,
    Field(
        max_length=100,
        pattern=BOX_PATTERN,
        description="Only this part of the query: x,y,width,height as shares of the picture.",
        examples=["0.25,0.1,0.5,0.4"],
    ),
]
FEATURES_HELP = "Of the network before training, or after it; by default those that the verdict prefers."
Features = Annotated[FeaturesName | None, Field(description=FEATURES_HELP)]
AnyIdField = Annotated[str, Field(pattern=ANY_ID_PATTERN, description=ITEM_OR_UPLOAD, examples=["1"])]


DayText = Annotated[str | None, Field(pattern=DAY_PATTERN, max_length=10, examples=["2024-05-31"])]
ShortText = Annotated[str | None, Field(max_length=200), EmptyIsNone]


class ItemFilter(BaseModel, frozen=True):
    """Which images are wanted. What is not given does not matter."""

    text: Annotated[ShortText, Field(description="In the path, in any case.")] = None
    folder: Annotated[ShortText, Field(description="Images in this folder and below it.")] = None
    label: Annotated[ShortText, Field(description="Images with this label.")] = None
    labeled: bool | None = Field(None, description="Images that have a label, or that have none.")
    tag: Annotated[ShortText, Field(description="Images with this tag.")] = None
    since: Annotated[DayText, Field(description="Images taken on this day or later.")] = None
    until: Annotated[DayText, Field(description="Images taken on this day or before it.")] = None
    camera: Annotated[ShortText, Field(description="Images taken by this camera.")] = None


class SearchOptions(ItemFilter):
    """Options of a search, by an upload or by an image of the index."""

    k: int = Field(24, ge=1, le=200, description="Hits wanted.")
    by: By = None
    features: Features = None
    box: BoxText = None
    diversity: float = Field(
        0.0, ge=0, le=1, allow_inf_nan=False, description="0: the most alike; more: hits that differ from one another."
    )
    min_score: float | None = Field(
        None, ge=-1, le=1, allow_inf_nan=False, description="Leave out hits below this score."
    )


class SearchById(SearchOptions):
    """A search by an image that the server knows."""

    query: AnyIdField


class ExplainOptions(BaseModel, frozen=True):
    """The two images to explain, and how they were compared."""

    query: AnyIdField
    hit: AnyIdField
    by: By = None
    features: Features = None
    box: BoxText = None


class ClusterOptions(BaseModel, frozen=True):
    """How to group the images of the index."""

    method: Literal["kmeans", "hdbscan"] = Field("kmeans", description="hdbscan finds the number by itself.")
    count: int | None = Field(None, ge=2, le=500, description="Of clusters (kmeans).")
    features: Features = None


class Page(BaseModel, frozen=True):
    """Which part of a list to return."""

    offset: int = Field(0, ge=0, le=2**40)
    limit: int = Field(100, ge=1, le=500)


class ItemsPage(ItemFilter, Page):
    """Which images of the index to list."""


class DuplicatesPage(Page):
    """Which copies to return."""

    threshold: float = Field(0.98, gt=0, le=1, allow_inf_nan=False, description="Least cosine of two copies.")
    keep: Literal["largest", "sharpest"] = Field("largest", description="What is best: most pixels, or sharpest edges.")


class ClusterPage(ClusterOptions, Page):
    """Which part of which grouping to return."""


def search_options(fields: Mapping[str, str]) -> SearchOptions:
    """Return the options in the form of an upload, or raise 422."""
    try:
        return SearchOptions.model_validate(fields)
    except ValidationError as error:
        raise HTTPException(422, describe_error(error.errors())) from None


def describe_error(errors: Any) -> str:
    """Return the first of pydantic's errors as a sentence; patterns are put into words."""
    first = errors[0]
    name = str(first["loc"][-1]) if first["loc"] else "request"
    words = first["msg"]
    if "pattern" in first.get("ctx", {}):
        words = PATTERN_WORDS.get(first["ctx"]["pattern"], "This is not of the form that is expected here")
    return f"{name}: {words.rstrip('.')}."


def request_box(text: str | None) -> Box | None:
    """Return the box that a request names, or raise 422."""
    try:
        return None if text is None else parse_box(text)
    except FineSightError as error:
        raise HTTPException(422, str(error)) from None


def multipart_body() -> dict[str, Any]:
    """Return the OpenAPI description of an upload, which FastAPI cannot make because it does not read the body."""
    properties: dict[str, Any] = {"file": {"type": "string", "format": "binary", "description": f"{ACCEPTED}."}}
    for name, schema in SearchOptions.model_json_schema()["properties"].items():
        kinds = [kind for kind in schema.get("anyOf", [{}]) if kind.get("type") != "null"]
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "title", "default")}
        default = {} if schema.get("default") is None else {"default": schema["default"]}
        properties[name] = {**kinds[0], **rest, **default}
    schema = {"type": "object", "required": ["file"], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
