"""Models of the answers of /api/judge. Nothing in them tells whose answer is at which side."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from finesight.server.schemas import ResponseModel


class JudgeQuestion(ResponseModel):
    number: int = Field(description="From 1; to be sent with the answer.")
    query: int = Field(description="An image, as the next two: /api/judge/images/{image}.")
    left: int
    right: int


class JudgeNames(ResponseModel):
    a: str
    b: str
    for_a: int = Field(description="Answers that prefer A.")
    for_b: int


class JudgeState(ResponseModel):
    state: Literal["asking", "decided", "equal", "far", "exhausted"] = Field(
        description="equal, far: undecided, and more answers are hardly worth it; exhausted: there is no more to ask."
    )
    question: JudgeQuestion | None = Field(description="What is asked; also when that is hardly worth it.")
    ahead: list[int] = Field(description="Images that are likely needed next.")
    answers: int
    ties: int = Field(description="Answers that were both or neither.")
    images: int = Field(description="That were searched.")
    disagree: int = Field(description="For which the two found different images.")
    low: float = Field(description="Of the 95 % interval of the difference in rank-1, in points; valid at any time.")
    high: float
    difference: float
    clicks_left: int | None = Field(description="A guess how many more answers decide.")
    names: JudgeNames | None = Field(description="What was which: only at the end, or with reveal.")
    winner: str | None = Field(description="The name of the better one, if that is decided.")
    words: str | None = Field(description="The result in sentences, with the names.")
    verdict: str | None = Field(description="What the run makes of it.")
