"""Models of the API's answers. The OpenAPI document is made of them, so their fields are the contract with clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from finesight.features.types import Box

Map = Annotated[list[list[float]], Field(description="Rows from top to bottom; each value in [0, 1].")]
Signed = Annotated[list[list[float]], Field(description="Rows from top to bottom; all values sum to the whole.")]
ITEM_ID_PATTERN = "^[0-9]{1,16}$"
CLUSTER_IMAGES = 12  # of each cluster in the overview
FeaturesName = Literal["before", "after"]
ItemId = Annotated[str, Field(pattern=ITEM_ID_PATTERN, description="Of an image of the index.")]
AnyId = Annotated[str, Field(description="Of an image of the index (digits), or of an uploaded picture (q…).")]


class ResponseModel(BaseModel):
    """An answer. ``schema_name`` is its name in the OpenAPI document where that is not the name of the class."""

    def __init_subclass__(cls, schema_name: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if schema_name:
            cls.__name__ = cls.__qualname__ = schema_name


class Problem(ResponseModel):
    """What went wrong, for people."""

    detail: str = Field(examples=["There is no image with that id."])


class ViewBox(ResponseModel):
    """The part of a picture that the network saw: shares of its width and height."""

    x: float
    y: float
    width: float
    height: float

    @classmethod
    def of(cls, box: Box) -> ViewBox:
        """Return ``box`` as a model."""
        x, y, width, height = box
        return cls(x=x, y=y, width=width, height=height)


class EncoderFacts(ResponseModel):
    method: str
    resolution: int = Field(description="Pixels of the view.")
    pooling: str = Field(description="The encoder's own.")
    fingerprint: str


class Progress(ResponseModel):
    phase: str
    done: int
    total: int


class FeaturesFacts(ResponseModel, schema_name="Features"):
    name: FeaturesName
    items: int
    spaces: list[str] = Field(description="Values that `by` takes with these features.")
    encoder: EncoderFacts
    projections: int


class Training(ResponseModel):
    """The training in the background."""

    state: Literal["waiting", "running", "indexing", "done", "failed", "stopped", "off"] = Field(
        description="waiting: until the folder can be searched. indexing: it is done, its features are being added."
    )
    words: str = Field(description="The same, for people.")
    phase: str | None = Field(None, description="What training does now.")
    step: int = 0
    total: int = 0
    seconds_left: float | None = None
    images_per_second: float | None = None
    loss: float | None = None
    new_images: int = Field(0, description="In the folder that it has not seen.")
    can_start: bool = Field(False, description="Whether POST /api/training would start or continue it now.")


class VerdictResponse(ResponseModel, schema_name="Verdict"):
    """Whether training helped."""

    verdict: str = Field(description="better, worse or cannot tell.")
    by: str = Field(description="What decided: labels, clicks or nothing.")
    kept: str = Field(description="trained or frozen: whose features are the default.")
    words: str = Field(description="The same, for people.")


class Health(ResponseModel):
    status: Literal["ok", "building", "empty"]
    version: str
    items: int
    spaces: list[str] = Field(description="Values that `by` takes.")
    encoder: EncoderFacts
    index: dict[str, object]
    progress: Progress | None
    problem: str | None = Field(description="Why the index could not be brought up to date, if so.")
    projections: int = Field(description="K of the rationale; 0 where there is none to show.")
    words: bool = Field(description="Whether /api/words can be asked.")
    default_features: FeaturesName = Field(description="The facts above are of these.")
    features: list[FeaturesFacts] = Field(description="All that `features` may name.")
    training: Training | None = Field(description="Of `finesight up`.")
    verdict: VerdictResponse | None = Field(description="Whether training helped, as soon as it is known.")


class ItemResponse(ResponseModel, schema_name="Item"):
    id: ItemId
    path: str = Field(description="Relative to the folder of the index.")
    name: str
    width: int
    height: int

    label: str = Field("", description="That people gave it.")
    tags: list[str] = []


class NamedCount(ResponseModel):
    name: str
    count: int = Field(description="Of images.")


class Folders(ResponseModel):
    items: int = Field(description="All images.")
    folders: list[NamedCount] = Field(description="With the images in each and below it.")


class CameraResponse(ResponseModel, schema_name="CameraData"):
    """What a camera wrote into the file; null where it did not."""

    taken: str | None = Field(description="In the camera's own time: 2024-05-31T08:15:00.")
    camera: str | None
    latitude: float | None
    longitude: float | None


class CameraFacts(ResponseModel):
    shown: bool = Field(description="Whether this server tells camera data.")
    reading: bool = Field(description="Whether files are being read just now.")
    known: int = Field(description="Images whose files were read.")
    dated: int = Field(description="Of them those with a date.")
    first: str | None
    last: str | None
    cameras: list[NamedCount]
    places: int = Field(description="Images with a place.")


class ItemFacts(ItemResponse):
    bytes: int
    view: ViewBox
    mask: Map
    camera: CameraResponse | None = Field(None, description="Null where this server does not tell it.")


class Items(ResponseModel):
    total: int = Field(description="That match.")
    items: list[ItemResponse]


class SearchHit(ItemResponse):
    score: float = Field(description="Cosine: 1 at most.")


class SearchQuery(ResponseModel):
    id: AnyId
    name: str
    width: int
    height: int
    view: ViewBox
    mask: Map


class Took(ResponseModel):
    embed_ms: float
    search_ms: float


class SearchResult(ResponseModel):
    query: SearchQuery
    by: str
    features: FeaturesName
    hits: list[SearchHit]
    took: Took


class Projection(ResponseModel):
    k: int
    name: str = Field("", description="That people gave this part.")
    strength: float
    map: Map


class Attention(ResponseModel):
    view: ViewBox
    mask: Map
    projections: list[Projection] = Field(description="The strongest first; none without a rationale.")


class Side(ResponseModel):
    view: ViewBox
    map: Signed


class ProjectionShareResponse(ResponseModel, schema_name="ProjectionShare"):
    k: int
    name: str = Field("", description="That people gave this part.")
    share: float = Field(description="Of the score.")
    query: Signed
    hit: Signed


class ExplanationResponse(ResponseModel, schema_name="Explanation"):
    score: float
    query: Side
    hit: Side
    projections: list[ProjectionShareResponse]


class Cluster(ResponseModel):
    id: int
    size: int
    items: list[ItemId] = Field(description=f"The {CLUSTER_IMAGES} nearest to the center, nearest first.")


class ClustersResponse(ResponseModel, schema_name="Clusters"):
    method: Literal["kmeans", "hdbscan"]
    clusters: list[Cluster]
    unclustered: int


class ClusterItems(ResponseModel):
    id: int
    size: int
    items: list[ItemResponse]


class Copy(ItemResponse):
    score: float = Field(description="Cosine with the first.")
    bytes: int
    sharpness: float | None = Field(description="Of edges, where `keep` is sharpest and the file could be read.")


class CopiesResponse(ResponseModel, schema_name="Copies"):
    kind: Literal["bytes", "picture", "features"] = Field(
        description="bytes: equal files. picture: the same to the eye. features: alike to the network."
    )
    items: list[Copy] = Field(description="The best to keep first.")


class Duplicates(ResponseModel):
    total: int = Field(description="Groups of copies.")
    others: int = Field(description="Images of all groups that are not the best one.")
    groups: list[CopiesResponse]


class IndexChoice(ResponseModel):
    name: str = Field(description="Its page is at /i/NAME/.")
    items: int
    samples: list[ItemId]


class Indexes(ResponseModel):
    indexes: list[IndexChoice]


class MapColors(ResponseModel):
    names: list[str]
    colors: list[int] = Field(description="Of each image of /api/map, in its order: the place of its name in `names`.")
