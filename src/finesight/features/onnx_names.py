"""What goes into the graph and comes out of it, by name. No torch: whoever runs a file needs only these."""

from __future__ import annotations

IMAGES, REGION = "images", "region"
FEATURE, AVERAGE, ATTENTION, RESPONSES = "feature", "average", "attention", "responses"
RATIONALE = "rationale"  # beside a bilinear feature: what an index keeps in its place
KEY = "finesight"  # of the metadata inside the file
FORMAT = 1
AXES = {
    IMAGES: ("batch", "height", "width", ""),
    REGION: ("region_batch", "region_height", "region_width"),  # each 1 or as the images: it is broadcast
    FEATURE: ("batch", ""),
    AVERAGE: ("batch", ""),
    RATIONALE: ("batch", ""),
    ATTENTION: ("batch", "rows", "columns"),
    RESPONSES: ("batch", "", "rows", "columns"),
}
VECTORS = (FEATURE, AVERAGE, RATIONALE)


def output_names(pooling: str, *, responses: bool = False) -> tuple[str, ...]:
    """In the order of the graph."""
    beside = (RATIONALE,) if pooling == "bilinear" else ()
    return (FEATURE, AVERAGE, ATTENTION, *beside, *((RESPONSES,) if responses else ()))


def output_of(space: str, pooling: str) -> str:
    """Which output holds the features of one of an index's spaces."""
    if space == AVERAGE:
        return AVERAGE
    return RATIONALE if pooling == "bilinear" else FEATURE
