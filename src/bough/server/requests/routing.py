"""Common parts of all routers: strict bodies, strict queries, ids in paths, documented error responses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response
from fastapi.datastructures import DefaultPlaceholder
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.status import HTTP_200_OK
from starlette.types import Receive, Scope, Send

from bough.errors import Malformed
from bough.server.requests.problems import RESPONSES, RefusedRequest
from bough.server.requests.strict_json import is_text, parse_json
from bough.types import JsonObject

ConversationId: TypeAlias = Annotated[UUID, Path(alias="id", description="Id of a conversation: a UUID.")]


class _StrictRequest(Request):
    """A request whose body is read as strict JSON."""

    async def json(self) -> Any:
        """Return the value of the body.

        Raises:
            RefusedRequest: The body is not strict JSON, as `parse_json` defines it.
        """
        if not hasattr(self, "_json"):
            try:
                self._json = parse_json(await self.body())
            except Malformed as error:  # FastAPI replaces every exception but `HTTPException` by its own
                raise RefusedRequest(400, f"the body: {error.message}", hint=error.hint) from None
        return self._json


SECURITY_SCHEMES: JsonObject = {
    "APIKeyHeader": {
        "type": "apiKey", "in": "header", "name": "X-Session-API-Key", "description": "A key of `bough keys create`.",
    },
    "HTTPBearer": {"type": "http", "scheme": "bearer", "description": "The same key as a bearer token."},
}  # fmt: skip
"""How clients send a key. FastAPI's classes for this are dependencies, which it would resolve at each request."""


class NeedsKey:
    """A dependency that checks the key of a request. `StrictRoute` calls it before the body is read."""

    async def __call__(self, request: Request) -> Any:
        """Return the access of the key's holder. A second call for the same request does not check again."""
        raise NotImplementedError


class StrictRoute(APIRoute):
    """A route that accepts JSON in UTF-8 only and refuses unknown query parameters."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        if any(isinstance(dependency.call, NeedsKey) for dependency in self.dependant.dependencies):
            security: JsonObject = {"security": [{name: []} for name in SECURITY_SCHEMES]}
            self.openapi_extra = security | (self.openapi_extra or {})
        self._direct = _DirectHandler(self) if _is_plain(self) else None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; a plain GET bypasses FastAPI's dependency solver."""
        if self._direct is None or scope["method"] != "GET":
            return await super().handle(scope, receive, send)
        response = await self._direct.answer(Request(scope, receive, send))
        await response(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that makes the strict checks, and then calls FastAPI's handler."""
        handle = super().get_route_handler()
        known_names = frozenset(_list_query_names(self.dependant))
        key_checks = [
            dependency.call for dependency in self.dependant.dependencies if isinstance(dependency.call, NeedsKey)
        ]
        has_json_body = self.body_field is not None and not _has_form_body(self)

        async def strict(request: Request) -> Response:
            # Before FastAPI reads the body: a request without a valid key must not cost memory.
            for check_key in key_checks:
                await check_key(request)
            _require_known(request, known_names)
            _require_texts(request)
            if has_json_body:
                _require_json(request)
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


class _DirectHandler:
    """Handles a plain GET with FastAPI's checks in the same order, without inspecting the endpoint at each request."""

    def __init__(self, route: StrictRoute) -> None:
        dependant: Any = route.dependant
        self._call: Callable[..., Coroutine[Any, Any, Any]] = dependant.call
        self._key_checks: list[tuple[str, NeedsKey]] = [
            (dependency.name, dependency.call) for dependency in dependant.dependencies
        ]
        self._known_names = frozenset(_list_query_names(dependant))
        self._query_models = [_QueryModel(field) for field in dependant.query_params if _QueryModel.fits(field)]
        self._query = [field for field in dependant.query_params if not _QueryModel.fits(field)]
        self._path, self._headers = dependant.path_params, dependant.header_params
        self._request_name: str | None = dependant.request_param_name
        self._response_name: str | None = dependant.response_param_name
        self._field: Any = route.response_field

    async def answer(self, request: Request) -> Response:
        """Return the response of the endpoint.

        Raises:
            RequestValidationError: A parameter is unknown or invalid.
        """
        values: dict[str, Any] = {name: await check_key(request) for name, check_key in self._key_checks}
        _require_known(request, self._known_names)
        _require_texts(request)
        errors: list[Any] = []
        for fields, received in (
            (self._path, request.path_params),
            (self._query, request.query_params),
            (self._headers, request.headers),
        ):
            if fields:
                arguments, invalid = request_params_to_args(fields, received)
                values |= arguments
                errors += invalid
        for model in self._query_models:
            values[model.name], invalid = model.read(request.query_params)
            errors += invalid
        if errors:
            raise RequestValidationError(errors)
        if self._request_name is not None:
            values[self._request_name] = request
        prepared = Response()
        if self._response_name is not None:
            values[self._response_name] = prepared
        result = await self._call(**values)
        if isinstance(result, Response):
            return result
        document, errors = self._field.validate(result, {}, loc=("response",))
        if errors:
            raise ResponseValidationError(errors)
        content, status = self._field.serialize_json(document), prepared.status_code
        response = Response(content, status_code=status, media_type="application/json")
        response.raw_headers.extend(pair for pair in prepared.raw_headers if pair[0] != b"content-length")
        return response


class _QueryModel:
    """Reads the query parameters that a model collects. It inspects the model once, FastAPI does so at each request."""

    def __init__(self, field: Any) -> None:
        self.name: str = field.name
        self._field = field
        self._is_list = {
            name: _takes_list(model_field.annotation)
            for name, model_field in field.field_info.annotation.model_fields.items()
        }

    @staticmethod
    def fits(field: Any) -> bool:
        """Whether a query parameter is a model whose fields have no aliases."""
        fields: Mapping[str, Any] | None = getattr(field.field_info.annotation, "model_fields", None)
        return fields is not None and all(
            model_field.alias is None and model_field.validation_alias is None for model_field in fields.values()
        )

    def read(self, query: QueryParams) -> tuple[Any, list[Any]]:
        """Return the model, and the errors of its fields. Other parameters are refused before."""
        values = {
            name: query.getlist(name) if self._is_list[name] else query[name] for name in query if name in self._is_list
        }
        return self._field.validate(values, {}, loc=("query",))


def _takes_list(annotation: Any) -> bool:
    """Whether a parameter of this type may be repeated."""
    return get_origin(annotation) is list or any(map(_takes_list, get_args(annotation)))


def _is_plain(route: StrictRoute) -> bool:
    """Whether a route is a GET that has only key checks, parameters and headers, and returns JSON."""
    dependant: Any = route.dependant
    is_simple = not (
        dependant.cookie_params
        or dependant.body_params
        or dependant.background_tasks_param_name
        or dependant.http_connection_param_name
        or dependant.websocket_param_name
        or dependant.security_scopes_param_name
    )
    return (
        is_simple
        and route.methods == {"GET"}
        and route.status_code in (None, HTTP_200_OK)
        and isinstance(route.response_class, DefaultPlaceholder)
        and route.response_field is not None
        and iscoroutinefunction(dependant.call)
        and all(
            isinstance(dependency.call, NeedsKey) and dependency.name is not None
            for dependency in dependant.dependencies
        )
        and not (route.response_model_include or route.response_model_exclude or route.response_model_exclude_none)
        and not (route.response_model_exclude_unset or route.response_model_exclude_defaults)
    )


class RouteIndex(BaseRoute):
    """The first route of the application, which finds strict routes by the segments of a path.

    For a path that it does not find, the following routes are tried. They also respond with the allowed methods.
    """

    def __init__(self, routes: Sequence[Any]) -> None:
        self._routes = list(routes)
        self._literals = {segment for route in routes for segment in route.path.split("/") if "{" not in segment}
        self._candidates = OrderedDict[tuple[int | str | None, ...], list[Any]]()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return a full match if a strict route is the first one that matches the request."""
        if scope["type"] != "http" or scope.get("root_path"):
            return Match.NONE, {}
        segments = scope["path"].split("/")
        literals = [segment if segment in self._literals else None for segment in segments[:_INDEXED_SEGMENTS]]
        key = (min(len(segments), _INDEXED_SEGMENTS + 1), *literals)
        candidates = self._candidates.get(key)
        if candidates is None:
            candidates = [route for route in self._routes if _may_match(route.path, segments, literals)]
            self._candidates[key] = candidates
            if len(self._candidates) > _MAX_KEYS:  # clients may send any combination of known segments
                self._candidates.popitem(last=False)
        for route in candidates:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                return (match, child_scope) if isinstance(route, StrictRoute) else (Match.NONE, {})
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request with the matching route."""
        await scope["route"].handle(scope, receive, send)

    @property
    def size(self) -> int:
        """The number of path patterns whose routes are cached."""
        return len(self._candidates)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """Raise `NoMatchFound`, because only the following routes have names."""
        raise NoMatchFound(name, path_params)


_INDEXED_SEGMENTS = 6
"""How many leading segments the index compares; the route itself compares all of them."""

_MAX_KEYS = 2_000
"""Maximum number of path patterns whose routes are cached."""


def _may_match(template: str, request_segments: Sequence[str], request_literals: Sequence[str | None]) -> bool:
    """Whether a request could match a route, judged by the number of segments and the literal ones.

    Args:
        template: The path of the route.
        request_literals: The leading segments of the request that some route has literally; None for others.
    """
    parts = template.split("/")
    if ":path}" not in template and min(len(parts), _INDEXED_SEGMENTS + 1) != min(
        len(request_segments), _INDEXED_SEGMENTS + 1
    ):
        return False
    for part, literal in zip(parts, request_literals, strict=False):
        if ":path}" in part:
            return True
        if "{" not in part and part != literal:
            return False
    return True


def _require_known(request: Request, known_names: frozenset[str]) -> None:
    """Check that a route knows all query parameters."""
    unknown = next((name for name in request.query_params if name not in known_names), None)
    if unknown is not None:
        raise RequestValidationError([{"type": "extra_forbidden", "loc": ("query", unknown), "msg": ""}])


def _require_texts(request: Request) -> None:
    """Check that every store can store and search the texts in the path and query."""
    parameters = [("query", name, value) for name, value in request.query_params.multi_items()]
    parameters += [("path", name, str(value)) for name, value in request.path_params.items()]
    for location, name, value in parameters:
        if not is_text(value):
            raise RequestValidationError([{"type": "text", "loc": (location, name), "msg": "not a text"}])


def _require_json(request: Request) -> None:
    """Check that a body, if there is one, has a media type of JSON."""
    if not _has_body(request):
        return
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise RefusedRequest(415, "the body must be JSON", hint="Content-Type: application/json")


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


def _list_query_names(dependant: Dependant) -> Iterator[str]:
    """Yield the names of the query parameters of a route, including those collected in a model."""
    for field in dependant.query_params:
        annotation: Any = field.field_info.annotation
        yield field.alias
        model: Mapping[str, Any] = getattr(annotation, "model_fields", {})
        yield from (model_field.alias or name for name, model_field in model.items())
    for dependency in dependant.dependencies:
        yield from _list_query_names(dependency)


def _has_form_body(route: APIRoute) -> bool:
    info = cast("Any", route.body_field).field_info
    return type(info).__name__ in ("Form", "File")


def router(tag: str, **options: Any) -> APIRouter:
    """Return a router whose routes are strict and whose refusals are documented."""
    return APIRouter(tags=[tag], route_class=StrictRoute, responses=RESPONSES, **options)


_ID_PARAMETER = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}


class WorkspaceRouter(APIRouter):
    """Registers each route below `/api` and below a conversation, because OpenHands' client uses both."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Register a route under both paths."""
        super().add_api_route(f"/api{path}", endpoint, **options)
        extra = {"parameters": [_ID_PARAMETER]}
        route_options: dict[str, Any] = options | {
            "name": f"{endpoint.__name__}_of_conversation",
            "openapi_extra": extra,
        }
        super().add_api_route("/api/conversations/{id}" + path, endpoint, **route_options)


def workspace_router() -> WorkspaceRouter:
    """Return a strict router for the files and commands of a workspace."""
    return WorkspaceRouter(tags=["Workspace"], route_class=StrictRoute, responses=RESPONSES)


__all__ = ["ConversationId", "RouteIndex", "router", "workspace_router"]
