"""Converting errors to problem documents (RFC 9457), which repeat no value that a caller sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from bough.errors import OPERATORS_CODES, OUTCOMES, BoughError, public_message
from bough.types import JsonObject

MEDIA_TYPE = "application/problem+json"
_MAX_DETAIL = 1000
"""Characters of a message: some repeat what they are about."""

RETRY_SECONDS = 1
_NEAR = 0.7
"""From which likeness on a known name is told: `hooks` is not `tools`."""

_TITLES: Mapping[str, str] = {
    "malformed": "The request cannot be read",
    "too_large": "The request is too large",
    "invalid_input": "The request is not valid",
    "not_found": "Not found",
    "unauthenticated": "Authentication is needed",
    "permission_denied": "Not allowed",
    "limit_exceeded": "A limit was reached",
    "conflict": "It conflicts with the present state",
    "invalid_transition": "It conflicts with the present state",
    "stale": "It has changed meanwhile",
    "not_supported": "Not supported",
    "unavailable": "Something that it needs is not there now",
    "internal": "A fault of the server",
}
_STATUS_CODES: Mapping[int, str] = {401: "unauthenticated", 403: "permission_denied", 404: "not_found"}
_CODES_BY_STATUS: Mapping[int, str] = {**_STATUS_CODES, 413: "too_large", 429: "limit_exceeded", 503: "unavailable"}
_LOG = logging.getLogger("bough.server")


_HINTS: Mapping[str, str] = {
    "malformed": "see /docs for the routes and what they take",
    "not_found": "what is another tenant's is not found either; lists show what is there",
    "invalid_input": "see /docs for the fields",
    "too_large": "send less",
    "unavailable": "try again later",
}
"""Of errors that say none of their own."""


class RefusedRequest(HTTPException):
    """A request refused with a status of HTTP itself, with a hint."""

    def __init__(self, status: int, detail: str, *, hint: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.hint = hint


class FieldProblem(BaseModel):
    """One field that is wrong.

    Attributes:
        field: Its path, for example `agent.llm.model`.
        rule: What it breaks.
        near: The known name that is nearest to an unknown one.
    """

    field: str
    rule: str
    near: str | None = None


class Problem(BaseModel):
    """What is wrong, for programs and people; the answer to every request that is refused."""

    model_config = ConfigDict(json_schema_extra={"description": "RFC 9457 problem document."})

    type: str = Field(examples=["urn:bough:error:not_found"])
    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
    instance: str
    errors: list[FieldProblem] | None = None
    details: JsonObject | None = None


def build_problem(error: BoughError, request_id: str, *, errors: Sequence[FieldProblem] = ()) -> Problem:
    """Return the problem document for an error."""
    message, details = public_message(error), error.details
    if error.code in OPERATORS_CODES:
        details = {name: value for name, value in details.items() if name != "path"}
    return Problem(
        type=f"urn:bough:error:{error.code}",
        title=_TITLES.get(error.code, "The request failed"),
        status=error.http_status,
        code=error.code,
        detail=message[:_MAX_DETAIL],
        hint=error.hint or _HINTS.get(error.code, ""),
        instance=f"/requests/{request_id}",
        errors=list(errors) or None,
        details=details or None,
    )


def build_response(
    problem: Problem, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response with a problem document and the headers of its status."""
    code = status or problem.status
    sent = dict(headers or {})
    if code in (429, 503):
        seconds = (problem.details or {}).get("retry_after_seconds", RETRY_SECONDS)
        sent.setdefault("Retry-After", str(max(1, round(seconds))))
    if code == 401:
        sent.setdefault("WWW-Authenticate", "Bearer")
    content = problem.model_copy(update={"status": code}).model_dump(mode="json", exclude_none=True)
    return JSONResponse(content, status_code=code, headers=sent, media_type=MEDIA_TYPE)


def answer_to(error: Exception, request_id: str) -> Response:
    """Return the response for any exception; an internal error shows only the id of the request."""
    match error:
        case BoughError():
            return build_response(build_problem(error, request_id))
        case RequestValidationError():
            return _invalid(error, request_id)
        case HTTPException():
            return _of_http(error, request_id)
        case _:
            _LOG.error("request %s failed", request_id, exc_info=error)
            return build_response(
                build_problem(BoughError("the server failed", hint="report the request id"), request_id)
            )


def install(app: FastAPI) -> None:
    """Install handlers that answer every error of the application with a problem document."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            error.headers = {**(error.headers or {}), "Allow": ", ".join(_list_methods(app, request))}
        return answer_to(error, read_request_id(request.scope))

    for kind in (BoughError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def _list_methods(app: FastAPI, request: Request) -> list[str]:
    """Return the methods of all routes of a path; HEAD is served wherever GET is."""
    scope: dict[str, Any] = {**request.scope, "path_params": {}}
    matching = [route for route in app.router.routes if route.matches(scope)[0] is not Match.NONE]
    # Routes that only refuse a path are listed only if no other route has it.
    listed = [route for route in matching if getattr(route, "include_in_schema", False)] or matching
    methods = {method for route in listed for method in getattr(route, "methods", None) or ()}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def read_request_id(scope: Any) -> str:
    """Return the id that the outermost middleware assigned to a request."""
    return str(scope.get("state", {}).get("request_id", ""))


def _of_http(error: HTTPException, request_id: str) -> Response:
    code = _CODES_BY_STATUS.get(error.status_code, "malformed" if error.status_code < 500 else "internal")
    hint = error.hint if isinstance(error, RefusedRequest) else ""
    if error.status_code in (404, 405):
        hint = "see /docs for the routes"
    wrapped = BoughError(str(error.detail), code=code, hint=hint)
    return build_response(build_problem(wrapped, request_id), status=error.status_code, headers=error.headers)


def _invalid(error: RequestValidationError, request_id: str) -> Response:
    errors = [cast("JsonObject", item) for item in error.errors()]
    if any(item["type"] == "json_invalid" for item in errors):
        malformed = BoughError("the body is not valid JSON", code="malformed", hint="send one JSON value in UTF-8")
        return build_response(build_problem(malformed, request_id))
    fields = list({item.field: item for item in map(_field_problem, _drop_other_branches(errors)[:20])}.values())
    first = fields[0]
    invalid = BoughError(f"{first.field}: {first.rule}", code="invalid_input", hint=_hint(first))
    return build_response(build_problem(invalid, request_id, errors=fields))


def _hint(problem: FieldProblem) -> str:
    return f"did you mean `{problem.near}`?" if problem.near else "see /docs for the fields"


def _field_problem(error: JsonObject) -> FieldProblem:
    parts = [str(part) for part in error["loc"][1:] if not _is_branch(part)]
    field = ".".join(parts) or "body"
    near = None
    if error["type"] == "extra_forbidden":
        known_names = list_known_fields()
        if parts[-1] not in known_names:  # a field of another body: a hint cannot name it
            near = next(iter(get_close_matches(parts[-1], known_names, 1, _NEAR)), None)
        return FieldProblem(field=field[:200], rule="unknown field", near=near)
    return FieldProblem(field=field[:200], rule=_rule(error))


_TYPES = frozenset({"str", "int", "float", "bool", "none", "constrained-str"})
"""How a path of pydantic's names the branches of a union, beside classes and types with parameters."""

_KIND_ERRORS = ("string_type", "dict_type", "list_type", "model_type", "model_attributes_type")


def _is_branch(part: Any) -> bool:
    """Whether a part of an error's path names a branch of a union instead of a field."""
    if not isinstance(part, str):
        return False
    return part.startswith(FORM_TAG) or part in _TYPES or "[" in part or part in _list_forms()


def _drop_other_branches(errors: list[JsonObject]) -> list[JsonObject]:
    """Drop the errors of union branches that the value was not meant for, if another error is more specific."""
    places = [tuple(item["loc"]) for item in errors]

    def says_less(error: JsonObject) -> bool:
        place = tuple(error["loc"])
        if error["type"] not in _KIND_ERRORS or not _is_branch(place[-1]):
            return False
        around = place[:-1]
        return any(len(other) > len(place) and other[: len(around)] == around for other in places)

    return [item for item in errors if not says_less(item)]


def _rule(error: JsonObject) -> str:
    """Return the broken rule; the messages of bough's validators contain no value."""
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:300]


FORM_TAG = "form:"
"""Begins the tags of bodies that have several forms; they are not part of a field's path."""


def list_known_fields() -> list[str]:
    """Return the names of all fields of bodies, to suggest the nearest one."""
    return sorted({name for kind in _list_forms().values() for name in kind.model_fields})


def _list_forms() -> dict[str, type[BaseModel]]:
    """Return all forms of bodies by name."""
    from bough.server.bodies.base import Form

    forms: dict[str, type[BaseModel]] = {}
    pending: list[type[BaseModel]] = [Form]
    while pending:
        kind = pending.pop()
        forms[kind.__name__] = kind
        pending += kind.__subclasses__()
    return forms


SCHEMA_REF = "#/components/schemas/Problem"

RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"content": {MEDIA_TYPE: {"schema": {"$ref": SCHEMA_REF}}}, "description": title}
    for status, title in sorted(
        {OUTCOMES[code].http_status: _TITLES[code] for code in _TITLES if code != "internal"}.items()
    )
}
"""What any route may answer besides its own answers, for OpenAPI."""
