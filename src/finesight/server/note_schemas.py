"""Models of what people write about images: what the page sends, and what it is answered."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from finesight.server.schemas import FeaturesName, ItemId, ItemResponse, NamedCount, ResponseModel

MOST_IDS = 20_000  # in one request
MOST_ZIPPED = 500
MOST_TOLD = 1000  # images of a change
MOST_VIEWS = 500
ADDRESS = r"^\?[!-~]*$"  # a query, so that no saved view leads to another site
ONE_LINE = r"^[^\x00-\x1f\x7f]*$"
Name = Annotated[str, Field(max_length=100, pattern=ONE_LINE)]
ItemIds = Annotated[
    list[ItemId], Field(min_length=1, max_length=MOST_IDS, description="Others than those of the index are left out.")
]


class RequestModel(BaseModel):
    """A body that is sent. Types are not guessed, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class LabelChange(RequestModel):
    """New labels and tags."""

    ids: ItemIds
    label: Name | None = Field(None, description="An empty one removes the label; null leaves it as it is.")
    add_tags: list[Name] = Field([], max_length=50)
    remove_tags: list[Name] = Field([], max_length=50)


class Undo(RequestModel):
    """The change to take back."""

    change: int = Field(ge=1, le=2**53, description="Its number: it must be the last one.")


class Chosen(RequestModel):
    """Images to download."""

    ids: list[ItemId] = Field(min_length=1, max_length=MOST_ZIPPED)


class Labels(ResponseModel):
    labels: list[NamedCount]
    tags: list[NamedCount]
    unlabeled: int
    change: int | None = Field(description="The last change, which can be taken back.")


class NoteResponse(ResponseModel, schema_name="Note"):
    id: ItemId
    label: str
    tags: list[str]


class Changed(ResponseModel):
    change: int | None = Field(description="What can be taken back now.")
    changed: int = Field(description="Images that it concerned.")
    notes: list[NoteResponse] = Field(description=f"Of the first {MOST_TOLD} of them, as they are now.")


class GroupStart(RequestModel):
    """Begin with clusters, as /api/clusters finds them."""

    method: Literal["kmeans", "hdbscan"] = "kmeans"
    count: int | None = Field(None, ge=2, le=500)
    features: FeaturesName | None = None


class GroupChange(RequestModel):
    """One change of the groups."""

    version: int = Field(ge=1, le=2**53, description="Of the groups that are changed: they must be the latest.")
    action: Literal["rename", "merge", "split", "move", "remove", "undo"]
    groups: list[Annotated[int, Field(ge=0, le=2**31)]] = Field(
        [], max_length=1000, description="rename, split: one. move: one, or none for a new group. merge: two or more."
    )
    name: Name = Field("", description="rename, move.")
    parts: int = Field(2, ge=2, le=20, description="split.")
    ids: list[ItemId] = Field([], max_length=MOST_IDS, description="move.")


class GroupApply(RequestModel):
    """Groups whose names become labels."""

    version: int = Field(ge=1, le=2**53)
    groups: list[Annotated[int, Field(ge=0, le=2**31)]] = Field(
        [], max_length=1000, description="None: all with names."
    )


class GroupResponse(ResponseModel, schema_name="Group"):
    id: int
    name: str
    size: int
    items: list[ItemId] = Field(description="The first ones.")


class Groups(ResponseModel):
    version: int | None = Field(description="None: there are no groups of one's own yet.")
    groups: list[GroupResponse]
    rest: int = Field(description="Images in no group.")


class GroupItems(GroupResponse):
    items: list[ItemResponse]  # type: ignore[assignment]


class PartName(RequestModel):
    """What a part is called: a projection of the rationale."""

    k: int = Field(ge=0, le=100_000, description="The number of the projection.")
    name: Name = Field(description="An empty one takes the name away.")
    features: FeaturesName | None = None


class PartNames(ResponseModel):
    names: dict[str, str] = Field(description="By the number of the projection.")


class SaveView(RequestModel):
    """A view of the page to save, or to forget."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=ONE_LINE)]
    address: Annotated[str, Field(max_length=2000, pattern=ADDRESS)] | None = Field(
        description="What follows the path in the address of the page; null forgets the view."
    )


class Pins(RequestModel):
    """The pinned images."""

    ids: list[ItemId] = Field(max_length=4)


class SavedView(ResponseModel):
    name: str
    address: str


class Saved(ResponseModel):
    views: list[SavedView]
    pins: list[ItemResponse]
