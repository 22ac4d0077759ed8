"""A server for the OpenAI chat-completions format that listens on loopback and returns scripted answers.

It is a real HTTP server: clients use their own HTTP, JSON, sockets and server-sent events. So a test sees what a client
sends for a model string with a base URL, and how it handles answers that break off or never arrive.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias, cast

from bough.types import JsonObject

_CHUNK_CHARS = 7
_MAX_BODY_BYTES = 16 << 20
_CREATED = 1_700_000_000


@dataclass(frozen=True, kw_only=True)
class ServerCall:
    """A tool call in an answer. `arguments` is JSON, or a string that is sent unchanged, to test malformed JSON."""

    tool: str
    arguments: JsonObject | str = field(default_factory=dict[str, Any])
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A response of the model: text, tool calls, or both.

    Attributes:
        finish: The finish reason; `auto` is `tool_calls` or `stop`, None omits it.
        says_usage: End a stream with the usage, if the request asks for it.
        thinking: What the model thinks before it answers, sent as `reasoning_content`.
        break_after: Close the connection after this number of chunks of a stream, or bytes of other answers.
        cut_after_chars: Close the connection after this number of characters of a streamed text.
        stall_after_chars: Send nothing more after this number of characters of a streamed text, until the server is
            closed.
    """

    text: str = ""
    calls: tuple[ServerCall, ...] = ()
    finish: str | None = "auto"
    says_usage: bool = True
    break_after: int | None = None
    thinking: str = ""
    cut_after_chars: int | None = None
    stall_after_chars: int | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An HTTP error in OpenAI's format. An account without quota has `kind` and `code` `insufficient_quota`."""

    status: int = 500
    message: str = "scripted failure"
    kind: str = "server_error"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Hang:
    """No answer until the server is closed."""


@dataclass(frozen=True, kw_only=True)
class RawAnswer:
    """An answer that is not in OpenAI's format: a proxy's page, or, as `text/event-stream`, a malformed stream."""

    body: str = "<!doctype html><title>Sign in</title>"
    content_type: str = "text/html"
    status: int = 200


@dataclass(frozen=True, kw_only=True)
class Received:
    """One request: its JSON `body`, its lower-case `headers`, its `path`."""

    path: str
    headers: Mapping[str, str]
    body: JsonObject

    @property
    def streamed(self) -> bool:
        """Whether the request asks for a stream."""
        return bool(self.body.get("stream"))


Reply: TypeAlias = str | Answer | Failure | Hang | RawAnswer
"""One answer of the script; a string stands for `Answer(text=…)`."""

Step: TypeAlias = Reply | Callable[[Received], Reply]
"""One answer, or a function that returns it for a request."""


class OpenAIServer:
    """Answers `POST /v1/chat/completions` with `steps`, in order, and `GET /v1/models`. A context manager.

    ```python
    with OpenAIServer([Answer(calls=(ServerCall(tool="add", arguments={"a": 1, "b": 2}),)), "3"]) as server:
        model = resolve_model("openai:test", base_url=server.url, env={}).model
    ```

    It listens on a free port of 127.0.0.1 and serves each connection in a separate thread. The end of the block also
    ends hanging requests. Token counts are the bytes of messages and answer divided by four.
    A request after the last step gets status 500. OpenAI's client repeats a request after 408, 409, 429 and 5xx, unless
    the failure has the header `x-should-retry: false`. bough repeats requests itself, whatever this header is.

    Attributes:
        received: The completion requests so far, oldest first.
    """

    def __init__(self, steps: Iterable[Step], *, model: str = "test") -> None:
        self.received: list[Received] = []
        self._steps = tuple(steps)
        self._model = model
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        # A short poll interval, because `shutdown` waits until the current one ends.
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="openai-server")

    @property
    def url(self) -> str:
        """The base URL, `/v1` included."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def url_without_v1(self) -> str:
        """A wrong base URL, as people write it: `/chat/completions` below it has status 404."""
        return self.url.removesuffix("/v1")

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Set before shutdown, because hanging requests wait for it, and `server_close` joins their threads.
        self._closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def wait_closed(self) -> None:
        """Block until the server is closed."""
        self._closing.wait()

    def models(self) -> JsonObject:
        """Return the list of models in OpenAI's format."""
        entry = {"id": self._model, "object": "model", "created": _CREATED, "owned_by": "bough"}
        return {"object": "list", "data": [entry]}

    def reply(self, received: Received) -> Reply:
        """Record a request and return the answer to it."""
        with self._lock:
            self.received.append(received)
            turn = len(self.received)
        if turn > len(self._steps):
            message = f"the script has {len(self._steps)} answers, and one more was requested"
            # Without this header, OpenAI's client would repeat the request, and tests would wait for its retries.
            return Failure(message=message, headers={"x-should-retry": "false"})
        step = self._steps[turn - 1]
        reply = step(received) if callable(step) else step
        return _add_ids(reply, turn) if isinstance(reply, Answer) else reply


class _Http(ThreadingHTTPServer):
    # Closing the server joins the threads of its requests, so that no thread outlives its test.
    daemon_threads = False
    block_on_close = True
    owner: OpenAIServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected; report other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection, and closes it after the answer, so that no idle connection outlives the server."""

    server: _Http  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing; `received` has the requests."""

    def do_GET(self) -> None:
        """Answer with the list of models."""
        if self.path == "/v1/models":
            self._send_json(200, self.server.owner.models())
        else:
            self._send_failure(Failure(status=404, message=f"no such path: {self.path}", kind="invalid_request_error"))

    def do_POST(self) -> None:
        """Answer with the next step of the script."""
        received = self._read_request()
        if isinstance(received, Failure):
            self._send_failure(received)
            return
        reply = self.server.owner.reply(received)
        match reply:
            case Hang():
                self.close_connection = True
                self.server.owner.wait_closed()
            case Failure():
                self._send_failure(reply)
            case RawAnswer():
                self._send_body(reply.status, reply.body.encode(), reply.content_type)
            case Answer() | str():
                answer = Answer(text=reply) if isinstance(reply, str) else reply
                (self._send_stream if received.streamed else self._send_complete)(answer, received)

    def _read_request(self) -> Received | Failure:
        """Return the request, or the failure to send if it is invalid."""
        size = int(self.headers.get("content-length") or 0)
        if size > _MAX_BODY_BYTES:
            self.close_connection = True
            return Failure(status=413, message="the request is too large", kind="invalid_request_error")
        raw = self.rfile.read(size)
        if self.path != "/v1/chat/completions":
            return Failure(status=404, message=f"no such path: {self.path}", kind="invalid_request_error")
        try:
            body = json.loads(raw)
        except ValueError as error:
            return Failure(status=400, message=f"invalid JSON: {error}", kind="invalid_request_error")
        if not isinstance(body, dict):
            return Failure(status=400, message="the body is not a JSON object", kind="invalid_request_error")
        return Received(
            path=self.path, headers={k.lower(): v for k, v in self.headers.items()}, body=cast("JsonObject", body)
        )

    def _send_complete(self, answer: Answer, received: Received) -> None:
        message: JsonObject = {"role": "assistant", "content": answer.text or None}
        if answer.thinking:
            message["reasoning_content"] = answer.thinking
        if answer.calls:
            message["tool_calls"] = [_make_call(call) for call in answer.calls]
        choice = {"index": 0, "message": message, "finish_reason": _choose_finish_reason(answer)}
        body = _make_envelope(received, "chat.completion") | {
            "choices": [choice],
            "usage": _count_usage(answer, received),
        }
        self._send_json(200, body, cut=answer.break_after)

    def _send_stream(self, answer: Answer, received: Received) -> None:
        self._send_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        for sent_count, chunk in enumerate(_make_chunks(answer, received)):
            # Without the final chunk of length 0, so that the client sees a broken stream, and not a short one.
            if sent_count == answer.break_after:
                return
            if chunk is _STALL:
                self.close_connection = True
                self.server.owner.wait_closed()
            if chunk in (_STALL, _CUT):
                return
            self._send_chunk(f"data: {json.dumps(chunk)}\n\n")
        self._send_chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send_chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send_failure(self, failure: Failure) -> None:
        error = {"message": failure.message, "type": failure.kind, "param": None, "code": failure.code}
        self._send_json(failure.status, {"error": error}, headers=failure.headers)

    def _send_json(
        self, status: int, body: JsonObject, *, headers: Mapping[str, str] | None = None, cut: int | None = None
    ) -> None:
        self._send_body(status, json.dumps(body).encode(), "application/json", headers=headers, cut=cut)

    def _send_body(
        self,
        status: int,
        data: bytes,
        content_type: str,
        *,
        headers: Mapping[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self._send_head(status, {"content-type": content_type, "content-length": str(len(data)), **(headers or {})})
        self.wfile.write(data if cut is None else data[:cut])

    def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()


_STALL: JsonObject = {"stream": "stalls"}
_CUT: JsonObject = {"stream": "is cut"}


def _make_chunks(answer: Answer, received: Received) -> Iterator[JsonObject]:
    """Yield the chunks of a stream: role, thinking, text, name and arguments of each call, finish reason, usage."""
    envelope = _make_envelope(received, "chat.completion.chunk")

    def chunk(delta: JsonObject, finish: str | None = None) -> JsonObject:
        return envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _split_into_pieces(answer.thinking):
        yield chunk({"reasoning_content": piece})
    last_chars = answer.stall_after_chars if answer.cut_after_chars is None else answer.cut_after_chars
    for piece in _split_into_pieces(answer.text[:last_chars]):
        yield chunk({"content": piece})
    if last_chars is not None:
        yield _STALL if answer.cut_after_chars is None else _CUT
    for index, call in enumerate(answer.calls):
        call_json = _make_call(call)
        arguments = call_json["function"]["arguments"]
        call_json["function"]["arguments"] = ""
        yield chunk({"tool_calls": [{"index": index, **call_json}]})
        for piece in _split_into_pieces(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _choose_finish_reason(answer))
    if answer.says_usage and received.body.get("stream_options", {}).get("include_usage"):
        yield envelope | {"choices": [], "usage": _count_usage(answer, received)}


def _make_envelope(received: Received, kind: str) -> JsonObject:
    return {"id": "chatcmpl-bough", "object": kind, "created": _CREATED, "model": received.body.get("model", "")}


def _make_call(call: ServerCall) -> JsonObject:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.tool, "arguments": arguments},
    }


def _add_ids(answer: Answer, turn: int) -> Answer:
    """Return `answer` with ids for calls without one; the ids are unique in the script."""
    calls = (replace(call, id=call.id or f"call_{turn}_{i}") for i, call in enumerate(answer.calls))
    return replace(answer, calls=tuple(calls))


def _choose_finish_reason(answer: Answer) -> str | None:
    if answer.finish != "auto":
        return answer.finish
    return "tool_calls" if answer.calls else "stop"


def _count_usage(answer: Answer, received: Received) -> JsonObject:
    prompt_tokens = len(json.dumps(received.body.get("messages", []))) // 4
    completion_tokens = (
        len(answer.text) + sum(len(json.dumps(_make_call(call)["function"])) for call in answer.calls)
    ) // 4
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _split_into_pieces(text: str) -> list[str]:
    return [text[start : start + _CHUNK_CHARS] for start in range(0, len(text), _CHUNK_CHARS)]
