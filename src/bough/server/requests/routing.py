"""What all routers share: strict bodies, strict queries, ids in paths, the answers that any route may give."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Annotated, Any, TypeAlias, cast
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from bough.errors import Malformed
from bough.server.requests.problems import RESPONSES, RefusedRequest
from bough.server.requests.strict_json import is_text, parse_json
from bough.types import JsonObject

ConversationId: TypeAlias = Annotated[UUID, Path(alias="id", description="Id of a conversation: a UUID.")]


class _StrictRequest(Request):
    """Reads JSON that is finite and not too deep."""

    async def json(self) -> Any:
        """Return the body.

        Raises:
            RefusedRequest: It is too deep, or has a number that is not finite, or text that is not UTF-8.
        """
        if not hasattr(self, "_json"):
            try:
                self._json = parse_json(await self.body())
            except Malformed as error:  # FastAPI hides every other exception of a body
                raise RefusedRequest(400, f"the body: {error.message}", hint=error.hint) from None
        return self._json


SECURITY_SCHEMES: JsonObject = {
    "APIKeyHeader": {
        "type": "apiKey", "in": "header", "name": "X-Session-API-Key", "description": "A key of `bough keys create`.",
    },
    "HTTPBearer": {"type": "http", "scheme": "bearer", "description": "The same key as a bearer token."},
}  # fmt: skip
"""How a key is sent. FastAPI's own classes for this are dependencies, which would be solved at each request."""


class NeedsKey:
    """A dependency that looks at the key of a request; a route asks it before the body is read."""

    async def __call__(self, request: Request) -> Any:
        """Return what the holder of the key may work with; asked twice for one request, it looks once."""
        raise NotImplementedError


class StrictRoute(APIRoute):
    """A route that takes JSON in UTF-8 and refuses query parameters that it does not know."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        super().__init__(path, endpoint, **given)
        if any(isinstance(each.call, NeedsKey) for each in self.dependant.dependencies):
            either: JsonObject = {"security": [{name: []} for name in SECURITY_SCHEMES]}
            self.openapi_extra = either | (self.openapi_extra or {})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        handle = super().get_route_handler()
        known = set(_query_names(self.dependant))
        rights = [each.call for each in self.dependant.dependencies if isinstance(each.call, NeedsKey)]
        takes_json = self.body_field is not None and not _takes_form(self)

        async def strict(request: Request) -> Response:
            for right in rights:  # FastAPI reads the body first: of a stranger's nothing is kept or parsed
                await right(request)
            unknown = next((name for name in request.query_params if name not in known), None)
            if unknown is not None:
                raise RequestValidationError([{"type": "extra_forbidden", "loc": ("query", unknown), "msg": ""}])
            _require_texts(request)
            if takes_json:
                _require_json(request)
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


def _require_texts(request: Request) -> None:
    """Check that what stands in the address can be stored or looked for in every store."""
    given = [("query", name, value) for name, value in request.query_params.multi_items()]
    given += [("path", name, str(value)) for name, value in request.path_params.items()]
    for place, name, value in given:
        if not is_text(value):
            raise RequestValidationError([{"type": "text", "loc": (place, name), "msg": "not a text"}])


def _require_json(request: Request) -> None:
    if not _has_body(request):
        return
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise RefusedRequest(415, "the body must be JSON", hint="Content-Type: application/json")


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
