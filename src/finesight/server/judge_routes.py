"""The routes below /api/judge: a question, its answer, and the pictures of it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from finesight.evaluation.judgments import Choice
from finesight.server.judge_desk import PICTURE_SIDE, JudgeRoom
from finesight.server.judge_schemas import JudgeState
from finesight.server.routes import READS_FILE, answer, image_response, problems

MOST = 2**31 - 1


async def _room(request: Request) -> JudgeRoom:
    room: JudgeRoom = request.app.state.judging
    return room


Room = Annotated[JudgeRoom, Depends(_room)]
judge_router = APIRouter(prefix="/api/judge", responses=problems(404))


@judge_router.get("", response_model=JudgeState, summary="What is asked, and how certain the answer is so far")
async def state(
    request: Request,
    room: Room,
    reveal: Annotated[bool, Query(description="Tell which candidates they are before the end.")] = False,
) -> Response:
    """Whose answer is left and whose is right is not in it."""
    return answer(await room.asking.run(request, lambda: room.find().state(reveal)))


@judge_router.post("/answers", response_model=JudgeState, responses=problems(404, 409), summary="Answer the question")
async def take_answer(
    request: Request,
    room: Room,
    question: Annotated[int, Query(ge=1, le=MOST, description="Its number.")],
    choice: Annotated[Choice, Query(description="Which of the two is more like the query.")],
) -> Response:
    """The answer is on the disk when this returns. 409 if that question is not asked any more."""
    return answer(await room.asking.run(request, lambda: room.find().answer(question, choice)))


@judge_router.post("/undo", response_model=JudgeState, responses=problems(404, 409), summary="Take back an answer")
async def undo(request: Request, room: Room) -> Response:
    """The last one; its question is asked again. 409 if there is none."""
    return answer(await room.asking.run(request, lambda: room.find().undo()))


@judge_router.get(
    "/images/{image}",
    response_class=Response,
    responses={**problems(*READS_FILE), 200: image_response("image/jpeg")},
    summary=f"A JPEG of at most {PICTURE_SIDE} pixels",
)
async def picture(
    request: Request, room: Room, image: Annotated[int, Path(ge=0, le=MOST, description="Of a question.")]
) -> Response:
    data = await room.drawing.run(request, lambda: room.find().picture(image))
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=600"})


@judge_router.get(
    "/answers",
    response_class=Response,
    responses={200: {"content": {"application/json": {}, "text/csv": {}}}},
    summary="All answers, as a file",
)
async def export(
    request: Request,
    room: Room,
    kind: Annotated[Literal["csv", "json"], Query(alias="format", description="Of the file.")] = "csv",
) -> Response:
    content = await room.asking.run(request, lambda: room.find().export(kind))
    types = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
    headers = {"Content-Disposition": f'attachment; filename="judgments.{kind}"'}
    return Response(content.encode("utf-8", "surrogateescape"), headers=headers, media_type=types[kind])
