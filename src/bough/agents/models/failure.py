"""Convert the exception of a failed model request to an error with a hint."""

from __future__ import annotations

from typing import Any, cast

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

from bough.errors import ModelError

_RETRY_LATER = "nothing is lost: continue the conversation later"
_MAX_CHARS = 500

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
    (ModelConnectionError, "cannot be reached", f"is its server running at that address? {_RETRY_LATER}"),
    (ModelRequestRejectedError, "rejected the request", "use another model, or see the server's log"),
)
"""(exception, summary, hint). The first match is used, so subclasses come before their base classes."""


def model_error(error: AgentRunError | UserError) -> ModelError:
    """Return the error for PydanticAI's exception, with the model's name, the cause and a hint.

    `details` has the HTTP status and the seconds to wait, if the provider sent them.
    """
    if not isinstance(error, ModelAPIError):
        return ModelError(_short(str(error)), hint="run it again, or use another model")
    summary, hint = next(
        ((summary, hint) for kind, summary, hint in _EXPLANATIONS if isinstance(error, kind)), ("failed", _RETRY_LATER)
    )
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    near = error.suggested_model_id if isinstance(error, ModelHTTPError) else None
    detail = _unwrap_message(error)
    message = f"the model {error.model_name} {summary}{f' (HTTP {status})' if status else ''}"
    message += f": {detail}" if detail else ""
    details = {"model": error.model_name, "http_status": status, "retry_after_seconds": error.retry_after}
    return ModelError(
        message,
        hint=f"did you mean {near}? {hint}" if near else hint,
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
        body = error.__cause__ or error
    return _short(str(body)) if body else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"
