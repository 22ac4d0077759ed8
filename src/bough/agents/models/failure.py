"""Convert the exception of a failed model request to an error with a hint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelTimeoutError,
    UserError,
)
from pydantic_ai.models import Model

from bough.errors import ModelError

_RETRY_LATER = "nothing is lost: continue the conversation later"
_MAX_CHARS = 500
_CLIENTS = ("openai.", "pydantic_ai.models.openai")
_FORMATS = ("application/json", "text/event-stream")

_EXPLANATIONS: tuple[tuple[type[ModelAPIError], str, str], ...] = (
    (ModelAuthenticationError, "rejected the key", "check the provider's key, or use another model"),
    (ModelNotFoundError, "is not known to its server", "check the name, or what the server lists at /models"),
    (
        ModelContextWindowExceededError,
        "cannot hold this conversation in its context window",
        "fork it at an earlier point, or condense it",
    ),
    (ModelQuotaExceededError, "has no quota left", "see the provider's account page, or use another model"),
    (ModelRateLimitError, "is rate limited", f"wait a little; {_RETRY_LATER}"),
    (ModelTimeoutError, "did not answer in time", _RETRY_LATER),
    (ModelConnectionError, "cannot be reached", f"is its server running at that address (--base-url)? {_RETRY_LATER}"),
    (ModelRequestRejectedError, "rejected the request", "use another model, or see the server's log"),
)
"""(exception, summary, hint). The first match is used, so subclasses come before their base classes."""


class NotOpenAIFormat(Exception):
    """A server answered something that no OpenAI-format server answers, such as the page of a proxy."""


async def check_format(response: Any) -> None:
    """Refuse a successful response whose content type is neither JSON nor a stream, before its body is read.

    Args:
        response: The HTTP client's response; the SDK reads such a body as an empty answer.

    Raises:
        NotOpenAIFormat: The response is a web page, for example.
    """
    content_type = str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
    if response.is_success and content_type and content_type not in _FORMATS:
        raise NotOpenAIFormat(content_type)


def is_malformed(error: Exception) -> bool:
    """Return whether an error was raised in the client of an OpenAI-format server because the answer is malformed.

    The client does not check what it reads: `data: [1]` in a stream, for example, raises an AttributeError in it.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
    return isinstance(error, AttributeError | TypeError | LookupError) and module.startswith(_CLIENTS)


def list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes; stops at a cycle."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__


def find_wrong_format(error: BaseException | None) -> str:
    """Return what an answer is instead of OpenAI's format; empty if the failure has another reason."""
    for cause in list_causes(error):
        if isinstance(cause, NotOpenAIFormat):
            return str(cause)
        if isinstance(cause, json.JSONDecodeError):
            return "invalid JSON in the stream"
    return ""


def is_silence(error: BaseException | None) -> bool:
    """Return whether a request was given up because the server sent nothing for too long."""
    # A timeout in the middle of a stream is reported as a lost connection, with the HTTP client's error as its cause.
    return any(
        isinstance(cause, ModelTimeoutError) or type(cause).__name__ == "ReadTimeout" for cause in list_causes(error)
    )


def find_address(model: Model[Any] | None) -> str:
    """Return the address that a model's requests are sent to, without a query; empty if it has none."""
    address = None if model is None else model.base_url
    return "" if not address else urlsplit(address)._replace(query="", fragment="").geturl().rstrip("/")


def model_error(
    error: AgentRunError | UserError | NotOpenAIFormat,
    *,
    model: Model[Any] | None = None,
    received_chars: int = 0,
    idle_seconds: float | None = None,
) -> ModelError:
    """Return the error for PydanticAI's exception, with the model's name and address, the cause and a hint.

    `details` has the address, the HTTP status and the seconds to wait, as far as they are known.

    Args:
        model: The model that was asked.
        received_chars: Characters of the response that arrived before the failure.
        idle_seconds: The time without an answer after which the request was given up.
    """
    address = find_address(model)
    server = address or "its server"
    location = f" at {address}" if address else ""
    name = "" if model is None else model.model_name
    if wrong_format := find_wrong_format(error):
        return ModelError(
            f"the answer of {server} is not an OpenAI-format answer ({wrong_format})",
            hint="check the address; it often ends in /v1",
            details={"model": name, "address": address},
        )
    if not isinstance(error, ModelAPIError):
        return ModelError(
            f"the model {name}{location}: {_shorten(str(error))}" if address else _shorten(str(error)),
            hint="run it again, or use another model",
        )
    details: dict[str, Any] = {"model": error.model_name, "address": address or None}
    if is_silence(error) and idle_seconds is not None:
        message = f"{server} sent nothing for {idle_seconds:g} s"
        message += f" after {received_chars} characters" if received_chars else ""
        return ModelError(message, hint=f"{_RETRY_LATER}, or set a longer stream_idle_seconds", details=details)
    if isinstance(error, ModelConnectionError) and received_chars:
        message = f"the connection to {server} was cut after {received_chars} characters"
        return ModelError(message, hint=_RETRY_LATER, details=details)
    summary, hint = next(
        ((summary, hint) for kind, summary, hint in _EXPLANATIONS if isinstance(error, kind)), ("failed", _RETRY_LATER)
    )
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    similar_name = error.suggested_model_id if isinstance(error, ModelHTTPError) else None
    detail = _unwrap_message(error)
    message = f"the model {error.model_name}{location} {summary}{f' (HTTP {status})' if status else ''}"
    message += f": {detail}" if detail else ""
    details |= {"http_status": status, "retry_after_seconds": error.retry_after}
    return ModelError(
        message,
        hint=f"did you mean {similar_name}? {hint}" if similar_name else hint,
        details={key: value for key, value in details.items() if value is not None},
    )


def _unwrap_message(error: ModelAPIError) -> str:
    """Return the message in the server's response or, without a response, of the exception's cause."""
    body: Any = error.body
    # Providers differ: `{"error": {"message": …}}`, `{"error": "…"}`, `{"message": …}`, or plain text.
    if isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        inner: Any = fields.get("error", fields)
        body = cast("dict[str, Any]", inner).get("message") if isinstance(inner, dict) else inner
    if body is None and not isinstance(error, ModelHTTPError):
        body = _find_system_reason(error) or error.__cause__ or error
    return _shorten(str(body)) if body else ""


def _find_system_reason(error: BaseException | None) -> str:
    """Return the operating system's error text, such as "Connection refused"; empty if no `OSError` is the cause.

    The message of the client may only be "Connection error".
    """
    reason, visited = "", set[int]()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        if isinstance(error, OSError) and error.errno:
            # Errors of name resolution have negative numbers, and only the exception contains their text.
            reason = os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
        error = error.__cause__ or error.__context__
    return reason


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"
