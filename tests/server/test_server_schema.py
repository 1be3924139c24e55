"""Schemathesis: whatever the OpenAPI document allows, and what it forbids, is answered as the document says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from finesight.server.copies import copies_router
from finesight.server.group_routes import group_router
from finesight.server.map_route import map_router
from finesight.server.note_routes import note_router
from finesight.server.routes import router
from serving import Gallery, copy_gallery, web_for

pytestmark = pytest.mark.slow

ROUTERS = (router, note_router, group_router, copies_router, map_router)
OPERATIONS = [f"{method} {route.path}" for one in ROUTERS for route in one.routes for method in route.methods]  # type: ignore[attr-defined]
# A schema cannot say which bytes are a picture, which box lies in it, and what poolings this index has.
# Nor which change is the last one, which groups there are, and that a name must not be blank.
BEYOND_SCHEMA = {
    *("POST /api/search", "GET /api/search", "GET /api/explain", "POST /api/labels/undo", "POST /api/saved"),
    *("POST /api/groups", "POST /api/groups/apply"),
}
NEVER_RIGHT = {  # random bytes are no picture; no training; no such change, version or group
    *("POST /api/search", "GET /api/training", "POST /api/training", "POST /api/labels/undo"),
    *("POST /api/groups", "POST /api/groups/apply"),
}
EXAMPLES = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    database=None,
)


class Api:
    """The schema of a running app, and the ids its index has: made-up ones alone would reach little more than 404."""

    def __init__(self, app: Any, ids: list[str]) -> None:
        self.schema = schemathesis.openapi.from_asgi("/openapi.json", app)
        self.operations = {found.ok().label: found.ok() for found in self.schema.get_all_operations()}
        self.ids = ids

    def real(self, values: Any) -> None:
        """Every second id becomes one that there is."""
        for name in ("query", "hit", "item", "name"):
            value = values.get(name) if isinstance(values, dict) else None
            if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) % 2:
                values[name] = self.ids[int(value) % len(self.ids)]
        if isinstance(values, dict) and isinstance(number := values.get("cluster"), int) and number % 2:
            values["cluster"] = 0
        if isinstance(values, dict) and isinstance(number := values.get("group"), int):
            values["group"] = number % 2


@pytest.fixture(scope="module")
def api(gallery: Gallery, ids: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    copied = copy_gallery(gallery, tmp_path_factory.mktemp("schema"))  # what is written must not be seen elsewhere
    with web_for(copied.index, copied.images.parent / "cache", allow_hosts=["testserver"]) as web:
        web.post("/api/groups/start", json={"count": 2})
        yield Api(web.app, list(ids.values()))


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
@pytest.mark.parametrize("label", OPERATIONS)
def test_answers_as_documented(api: Api, label: str, mode: GenerationMode) -> None:
    operation = api.operations[label]
    if mode.is_negative and not (operation.path_parameters or operation.query or operation.body):
        pytest.skip("takes nothing, so nothing can be wrong")
    statuses = set()

    @EXAMPLES
    @given(operation.as_strategy(generation_mode=mode))
    def each(case: schemathesis.Case) -> None:
        if mode.is_positive:
            api.real(case.query)
            api.real(case.path_parameters)
        left_out = [positive_data_acceptance] if label in BEYOND_SCHEMA else []
        statuses.add(case.call_and_validate(excluded_checks=left_out).status_code)

    each()
    assert 500 not in statuses
    if mode.is_negative:
        assert any(status >= 400 for status in statuses)
    elif label not in NEVER_RIGHT:
        assert 200 in statuses
