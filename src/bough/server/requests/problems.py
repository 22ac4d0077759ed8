"""Converting errors to problem documents (RFC 9457), which repeat no value that a caller sent."""

from __future__ import annotations

import json
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
_MAX_DETAIL_CHARS = 1000
"""Longer messages are cut, because some repeat an input."""

RETRY_SECONDS = 1
_MIN_SIMILARITY = 0.7
"""Minimum similarity of a known name that is suggested: `tools` is not suggested for `hooks`."""

_TITLES: Mapping[str, str] = {
    "malformed": "The request cannot be read",
    "too_large": "The request is too large",
    "invalid_input": "The request is not valid",
    "not_found": "Not found",
    "unauthenticated": "Authentication is needed",
    "permission_denied": "Not allowed",
    "limit_exceeded": "A limit was reached",
    "conflict": "The request conflicts with the current state",
    "invalid_transition": "The request conflicts with the current state",
    "stale": "The resource has changed",
    "not_supported": "Not supported",
    "unavailable": "Temporarily unavailable",
    "internal": "Internal server error",
}
_STATUS_CODES: Mapping[int, str] = {401: "unauthenticated", 403: "permission_denied", 404: "not_found"}
_CODES_BY_STATUS: Mapping[int, str] = {**_STATUS_CODES, 413: "too_large", 429: "limit_exceeded", 503: "unavailable"}
_MAX_LISTED_FIELDS = 20
_LOG = logging.getLogger("bough.server")


_HINTS: Mapping[str, str] = {
    "malformed": "see /docs for the routes and their parameters",
    "not_found": "check the id; resources of other tenants are not found either",
    "invalid_input": "see /docs for the fields",
    "too_large": "send less",
    "unavailable": "try again later",
}
"""The hints of errors without a hint, by code."""


class RefusedRequest(HTTPException):
    """An `HTTPException` with a hint."""

    def __init__(self, status: int, detail: str, *, hint: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.hint = hint


class FieldProblem(BaseModel):
    """One field that is wrong.

    Attributes:
        field: Its path, for example `agent.llm.model`.
        rule: The rule that it breaks.
        near: The known name that is most similar to an unknown one.
    """

    field: str
    rule: str
    near: str | None = None


class Problem(BaseModel):
    """Describes an error to programs and people; the response to every refused request."""

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
        detail=message[:_MAX_DETAIL_CHARS],
        hint=error.hint or _HINTS.get(error.code, ""),
        instance=f"/requests/{request_id}",
        errors=list(errors) or None,
        details=details or None,
    )


def build_response(
    problem: Problem, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response with a problem document, and the headers that its status requires.

    Args:
        status: Replaces the status in the document.
    """
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
    """Return the response to any exception; that to an unexpected one contains only the id of the request."""
    match error:
        case BoughError():
            return build_response(build_problem(error, request_id))
        case RequestValidationError():
            return _respond_to_invalid_body(error, request_id)
        case HTTPException():
            return _respond_to_http_error(error, request_id)
        case _:
            _LOG.error("request %s failed", request_id, exc_info=error)
            return build_response(
                build_problem(BoughError("the server failed", hint="report the request id"), request_id)
            )


def install(app: FastAPI) -> None:
    """Install handlers that respond to every error of the application with a problem document."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            error.headers = {**(error.headers or {}), "Allow": ", ".join(_list_methods(app, request))}
        response = answer_to(error, read_request_id(request.scope))
        return _add_openai_error(response) if request.url.path.startswith("/v1/") else response

    for kind in (BoughError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def describe_openai_error(code: str, message: str, hint: str) -> JsonObject:
    """Return an error in the form in which clients of OpenAI's format expect it."""
    return {"message": f"{message}; {hint}" if hint else message, "type": code, "param": None, "code": code}


def _add_openai_error(response: Response) -> Response:
    """Return a problem with the member `error`, in which clients of OpenAI's format look for the message."""
    # Added to the problem instead of replacing it, so that clients of both formats find what they look for.
    problem: JsonObject = json.loads(bytes(response.body))
    error = describe_openai_error(problem["code"], problem["detail"], problem.get("hint", ""))
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return JSONResponse(problem | {"error": error}, status_code=response.status_code, headers=headers)


def _list_methods(app: FastAPI, request: Request) -> list[str]:
    """Return the methods of all routes of a request's path; HEAD is served wherever GET is."""
    scope: dict[str, Any] = {**request.scope, "path_params": {}}
    matching = [route for route in app.router.routes if route.matches(scope)[0] is not Match.NONE]
    # Routes outside of the schema only refuse a path. They count only if no other route has the path.
    listed = [route for route in matching if getattr(route, "include_in_schema", False)] or matching
    methods = {method for route in listed for method in getattr(route, "methods", None) or ()}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def read_request_id(scope: Any) -> str:
    """Return the id that the outermost middleware assigned to a request."""
    return str(scope.get("state", {}).get("request_id", ""))


def _respond_to_http_error(error: HTTPException, request_id: str) -> Response:
    """Return the response to an error of the framework, with the code that belongs to its status."""
    code = _CODES_BY_STATUS.get(error.status_code, "malformed" if error.status_code < 500 else "internal")
    hint = error.hint if isinstance(error, RefusedRequest) else ""
    if error.status_code in (404, 405):
        hint = "see /docs for the routes"
    wrapped = BoughError(str(error.detail), code=code, hint=hint)
    return build_response(build_problem(wrapped, request_id), status=error.status_code, headers=error.headers)


def _respond_to_invalid_body(error: RequestValidationError, request_id: str) -> Response:
    """Return the response to invalid fields or parameters; it lists at most 20 of them."""
    errors = [cast("JsonObject", item) for item in error.errors()]
    if any(item["type"] == "json_invalid" for item in errors):
        malformed = BoughError("the body is not valid JSON", code="malformed", hint="send one JSON value in UTF-8")
        return build_response(build_problem(malformed, request_id))
    problems = [_make_field_problem(item) for item in _drop_other_branches(errors)[:_MAX_LISTED_FIELDS]]
    fields = list({problem.field: problem for problem in problems}.values())
    first = fields[0]
    invalid = BoughError(f"{first.field}: {first.rule}", code="invalid_input", hint=_make_field_hint(first))
    return build_response(build_problem(invalid, request_id, errors=fields))


def _make_field_hint(problem: FieldProblem) -> str:
    return f"did you mean `{problem.near}`?" if problem.near else "see /docs for the fields"


def _make_field_problem(error: JsonObject) -> FieldProblem:
    """Convert an error of pydantic; names of union branches are removed from its path."""
    parts = [str(part) for part in error["loc"][1:] if not _is_branch(part)]
    field = ".".join(parts) or "body"
    near = None
    if error["type"] == "extra_forbidden":
        known_names = list_known_fields()
        if parts[-1] not in known_names:  # a name that other bodies have is not a misspelling
            near = next(iter(get_close_matches(parts[-1], known_names, 1, _MIN_SIMILARITY)), None)
        return FieldProblem(field=field[:200], rule="unknown field", near=near)
    return FieldProblem(field=field[:200], rule=_read_rule(error))


_BRANCH_NAMES = frozenset({"str", "int", "float", "bool", "none", "constrained-str"})
"""Names of union branches in paths of pydantic, besides the names of classes and of types with parameters."""

_WRONG_TYPES = ("string_type", "dict_type", "list_type", "model_type", "model_attributes_type")


def _is_branch(part: Any) -> bool:
    """Whether a part of an error's path names a branch of a union instead of a field."""
    if not isinstance(part, str):
        return False
    return part.startswith(FORM_TAG) or part in _BRANCH_NAMES or "[" in part or part in _list_forms()


def _drop_other_branches(errors: list[JsonObject]) -> list[JsonObject]:
    """Drop errors of union branches whose type the value does not have, if another branch has an error within it."""
    paths = [tuple(item["loc"]) for item in errors]

    def is_less_specific(error: JsonObject) -> bool:
        path = tuple(error["loc"])
        if error["type"] not in _WRONG_TYPES or not _is_branch(path[-1]):
            return False
        union_path = path[:-1]
        return any(len(other) > len(path) and other[: len(union_path)] == union_path for other in paths)

    return [item for item in errors if not is_less_specific(item)]


def _read_rule(error: JsonObject) -> str:
    """Return the broken rule, without the value."""
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:300]


FORM_TAG = "form:"
"""Prefix of the tags of bodies with several forms; the tags are not part of a field's path."""


def list_known_fields() -> list[str]:
    """Return the names of all fields of bodies, from which the most similar one is suggested."""
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
"""The error responses of every route, for OpenAPI."""
