"""What the API answers, as models: the OpenAPI document is made of these."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Map = Annotated[list[list[float]], Field(description="Rows from top to bottom; each value in [0, 1].")]
Signed = Annotated[list[list[float]], Field(description="Rows from top to bottom; all values sum to the whole.")]
ItemId = Annotated[str, Field(pattern="^[0-9]{1,16}$", description="Of an image of the index.")]
AnyId = Annotated[str, Field(description="Of an image of the index (digits), or of an uploaded picture (q…).")]


class Problem(BaseModel):
    """What went wrong, for people."""

    detail: str = Field(examples=["There is no image with that id."])


class ViewBox(BaseModel):
    """The part of a picture that the network saw: shares of its width and height."""

    x: float
    y: float
    width: float
    height: float


class EncoderFacts(BaseModel):
    method: str
    resolution: int = Field(description="Pixels of the view.")
    pooling: str = Field(description="The encoder's own.")
    fingerprint: str


class Progress(BaseModel):
    phase: str
    done: int
    total: int


class Health(BaseModel):
    status: Literal["ok", "building", "empty"]
    version: str
    items: int
    spaces: list[str] = Field(description="Values that `by` takes.")
    encoder: EncoderFacts
    index: dict[str, object]
    progress: Progress | None
    problem: str | None = Field(description="Why the index could not be brought up to date, if so.")
    projections: int = Field(description="K of the rationale; 0 where there is none to show.")


class Item(BaseModel):
    id: ItemId
    path: str = Field(description="Relative to the folder of the index.")
    name: str
    width: int
    height: int


class ItemFacts(Item):
    bytes: int
    view: ViewBox
    mask: Map


class Items(BaseModel):
    total: int = Field(description="That match.")
    items: list[Item]


class SearchHit(Item):
    score: float = Field(description="Cosine: 1 at most.")


class SearchQuery(BaseModel):
    id: AnyId
    name: str
    width: int
    height: int
    view: ViewBox
    mask: Map


class Took(BaseModel):
    embed_ms: float
    search_ms: float


class SearchResult(BaseModel):
    query: SearchQuery
    by: str
    hits: list[SearchHit]
    took: Took


class Projection(BaseModel):
    k: int
    strength: float
    map: Map


class Attention(BaseModel):
    view: ViewBox
    mask: Map
    projections: list[Projection] = Field(description="The strongest first; none without a rationale.")


class Side(BaseModel):
    view: ViewBox
    map: Signed


class ProjectionShare(BaseModel):
    k: int
    share: float = Field(description="Of the score.")
    query: Signed
    hit: Signed


class Explanation(BaseModel):
    score: float
    query: Side
    hit: Side
    projections: list[ProjectionShare]


class Cluster(BaseModel):
    id: int
    size: int
    items: list[ItemId] = Field(description="The 12 nearest to the center, nearest first.")


class Clusters(BaseModel):
    method: Literal["kmeans", "hdbscan"]
    clusters: list[Cluster]
    unclustered: int


class ClusterItems(BaseModel):
    id: int
    size: int
    items: list[Item]
