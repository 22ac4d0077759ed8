"""What all routers share: strict bodies, strict queries, ids in paths, the answers that any route may give."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Annotated, Any, TypeAlias, cast
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from bough.server.requests.problems import RESPONSES

MAX_DEPTH = 64

ConversationId: TypeAlias = Annotated[UUID, Path(alias="id", description="Id of a conversation: a UUID.")]


class _StrictRequest(Request):
    """Reads JSON that is finite and not too deep."""

    async def json(self) -> Any:
        """Return the body.

        Raises:
            HTTPException: It is too deep, or has a number that is not finite, or text that is not UTF-8.
        """
        if not hasattr(self, "_json"):
            self._json = _loads(await self.body())
        return self._json


class StrictRoute(APIRoute):
    """A route that takes JSON in UTF-8 and refuses query parameters that it does not know."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        handle = super().get_route_handler()
        known = set(_query_names(self.dependant))
        takes_json = self.body_field is not None and not _takes_form(self)

        async def strict(request: Request) -> Response:
            unknown = next((name for name in request.query_params if name not in known), None)
            if unknown is not None:
                raise RequestValidationError([{"type": "extra_forbidden", "loc": ("query", unknown), "msg": ""}])
            if takes_json:
                _require_json(request)
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


def _require_json(request: Request) -> None:
    if not _has_body(request):
        return
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise HTTPException(415, "the body must be JSON: Content-Type: application/json")


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


def _query_names(dependant: Dependant) -> Iterator[str]:
    """Yield the names of the query parameters of a route, those that one model gathers among them."""
    for field in dependant.query_params:
        annotation: Any = field.field_info.annotation
        yield field.alias
        model: Mapping[str, Any] = getattr(annotation, "model_fields", {})
        yield from (each.alias or name for name, each in model.items())
    for each in dependant.dependencies:
        yield from _query_names(each)


def _takes_form(route: APIRoute) -> bool:
    info = cast("Any", route.body_field).field_info
    return type(info).__name__ in ("Form", "File")


def _loads(body: bytes) -> Any:
    def refuse(name: str) -> Any:
        raise HTTPException(400, f"{name} is not JSON")

    try:
        value: Any = json.loads(body.decode("utf-8"), parse_constant=refuse)
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8") from None
    except RecursionError:
        raise HTTPException(400, f"the body is deeper than {MAX_DEPTH} levels") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Check a JSON value without recursion: at most 64 levels, every number finite."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise HTTPException(400, f"the body is deeper than {MAX_DEPTH} levels")
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += cast("dict[str, Any]", each).values()
            elif isinstance(each, list):
                below += cast("list[Any]", each)
            elif isinstance(each, float) and not math.isfinite(each):
                raise HTTPException(400, "the body has a number that is not finite")
            elif isinstance(each, str) and not _is_text(each):
                raise HTTPException(400, "the body has text that cannot be written as UTF-8")
        level = below


def _is_text(text: str) -> bool:
    """Whether a text can be stored: no lone surrogates, no zero bytes (which Postgres refuses)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def router(tag: str, **given: Any) -> APIRouter:
    """Return a router whose routes are strict and whose refusals are documented."""
    return APIRouter(tags=[tag], route_class=StrictRoute, responses=RESPONSES, **given)


_ID_PARAMETER = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}


class WorkspaceRouter(APIRouter):
    """Registers each route twice, below `/api` and below a conversation: OpenHands' client knows both forms."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        """Register a route in both forms."""
        super().add_api_route(f"/api{path}", endpoint, **given)
        extra = {"parameters": [_ID_PARAMETER]}
        named: dict[str, Any] = given | {"name": f"{endpoint.__name__}_of_conversation", "openapi_extra": extra}
        super().add_api_route("/api/conversations/{id}" + path, endpoint, **named)


def workspace_router() -> WorkspaceRouter:
    """Return a strict router for the files and commands of a workspace."""
    return WorkspaceRouter(tags=["Workspace"], route_class=StrictRoute, responses=RESPONSES)


__all__ = ["ConversationId", "router", "workspace_router"]
