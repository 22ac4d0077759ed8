"""A server for Anthropic's messages format that listens on loopback, returns scripted answers and caches prefixes.

The cache follows Anthropic's documentation. A request is a list of blocks: tools, then system, then messages. A block
marked with `cache_control` ends a prefix that is cached. A later request to the same model reads the longest cached
prefix that ends at most 20 blocks before one of its own marks. Prefixes below a minimum of tokens are not cached.
Entries do not expire. The tokens of a block are the characters of its JSON divided by four.

Source: Anthropic's documentation of prompt caching.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from bough.testing.openai_server import Answer, Failure, Received, Reply, ServerCall, Step
from bough.types import JsonObject

_MAX_LOOK_BACK_BLOCKS = 20
_MAX_MARKS = 4
_CHUNK_CHARS = 7


@dataclass(frozen=True, kw_only=True)
class CacheUse:
    """The input tokens of a request by their cache use.

    Attributes:
        read: Tokens of a cached prefix.
        written: Tokens added to the cache.
        uncached: Tokens after the last mark; all tokens if there is no mark.
    """

    read: int
    written: int
    uncached: int

    @property
    def input(self) -> int:
        """All input tokens."""
        return self.read + self.written + self.uncached


class AnthropicServer:
    """Answers `POST /v1/messages` with `steps`, in order. A context manager.

    It listens on a free port of 127.0.0.1. Set `ANTHROPIC_BASE_URL` to its `url` for clients.

    Args:
        min_tokens: Shorter prefixes are not cached, as with a real provider.

    Attributes:
        received: The requests so far, oldest first.
        uses: The cache use of each request.
    """

    def __init__(self, steps: Iterable[Step], *, min_tokens: int = 1024) -> None:
        self.received: list[Received] = []
        self.uses: list[CacheUse] = []
        self._steps = tuple(steps)
        self._min_tokens = min_tokens
        self._cached: set[str] = set()
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        # A short poll interval, because `shutdown` waits until the current one ends.
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="anthropic-server")

    @property
    def url(self) -> str:
        """The base URL, without `/v1`, which the client adds."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> AnthropicServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def measure_cached_share(self, start: int = 0, stop: int | None = None) -> float:
        """Return the share of input tokens that requests `start` to `stop` read from the cache; 0 without requests."""
        uses = self.uses[start:stop]
        input_tokens = sum(use.input for use in uses)
        return sum(use.read for use in uses) / input_tokens if input_tokens else 0.0

    def reply(self, received: Received) -> tuple[Reply, CacheUse]:
        """Record a request, and return its answer and its cache use."""
        with self._lock:
            self.received.append(received)
            number = len(self.received)
            # Under the lock, so that `received` and `uses` have the same order.
            use = self._serve_from_cache(received.body)
            self.uses.append(use)
        if number > len(self._steps):
            return Failure(message=f"the script has {len(self._steps)} answers, and one more was requested"), use
        step = self._steps[number - 1]
        return (step(received) if callable(step) else step), use

    def _serve_from_cache(self, body: JsonObject) -> CacheUse:
        """Read and write the cache as a provider does for this request, and return the cache use."""
        blocks = list_blocks(body)
        digest = hashlib.sha256(str(body.get("model")).encode())
        # For each block: a digest of the model and of all text up to the end of the block, and the tokens of that text.
        digests: list[str] = []
        prefix_tokens: list[int] = []
        total = 0
        for block in blocks:
            digest.update(block.text.encode())
            digests.append(digest.hexdigest())
            total += len(block.text) // 4
            prefix_tokens.append(total)
        mark_positions = [index for index, block in enumerate(blocks) if block.marked]
        read = 0
        for mark in mark_positions:
            start = max(0, mark - _MAX_LOOK_BACK_BLOCKS)
            hits = [index for index in range(start, mark + 1) if digests[index] in self._cached]
            read = max([read, *(prefix_tokens[index] for index in hits)])
        cached = [index for index in mark_positions if prefix_tokens[index] >= self._min_tokens]
        self._cached.update(digests[index] for index in cached)
        cached_tokens = max([read, *(prefix_tokens[index] for index in cached)])
        return CacheUse(read=read, written=cached_tokens - read, uncached=total - cached_tokens)


@dataclass(frozen=True)
class Block:
    """One block of a request: its JSON without the mark, and whether it has a mark."""

    text: str
    marked: bool


def list_blocks(body: JsonObject) -> list[Block]:
    """Return the blocks of a request in the order in which a provider reads them: tools, system, messages.

    Raises:
        ValueError: More than four blocks are marked, which a provider rejects.
    """
    system: Any = body.get("system") or []
    tools: list[JsonObject] = body.get("tools") or []
    raw_blocks: list[JsonObject] = [{"of": "tools", **tool} for tool in tools]
    system_parts = [{"text": system}] if isinstance(system, str) else system
    raw_blocks += [{"of": "system", **part} for part in system_parts]
    for message in body["messages"]:
        content: Any = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        raw_blocks += [{"of": message["role"], **part} for part in parts]
    marked = ["cache_control" in block for block in raw_blocks]
    if body.get("cache_control") and marked:
        marked[-1] = True  # `cache_control` of the request marks its last block
    if sum(marked) > _MAX_MARKS:
        raise ValueError(f"{sum(marked)} blocks have cache_control, at most {_MAX_MARKS} may")
    texts = [json.dumps({key: value for key, value in block.items() if key != "cache_control"}) for block in raw_blocks]
    return [Block(text, is_marked) for text, is_marked in zip(texts, marked, strict=True)]


class _Http(ThreadingHTTPServer):
    # Closing the server joins the threads of its requests, so that no thread outlives its test.
    daemon_threads = False
    block_on_close = True
    owner: AnthropicServer


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection, and closes it after the answer."""

    server: _Http  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing; `received` has the requests."""

    def do_POST(self) -> None:
        """Answer with the next step of the script."""
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        body: JsonObject = {}
        try:
            body = cast("JsonObject", json.loads(raw))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply, use = self.server.owner.reply(Received(path=self.path, headers=headers, body=body))
        except (ValueError, KeyError) as error:
            reply, use = Failure(status=400, message=str(error), kind="invalid_request_error"), None
        if isinstance(reply, str):
            reply = Answer(text=reply)
        if isinstance(reply, Answer) and use is not None:
            message = _make_message(reply, len(self.server.owner.received), use)
            (self._send_stream if body.get("stream") else self._send_complete)(message)
        else:
            failure = (
                reply if isinstance(reply, Failure) else Failure(message="this server cannot send this kind of answer")
            )
            error = {"type": "error", "error": {"type": failure.kind, "message": failure.message}}
            self._send(failure.status, "application/json", json.dumps(error))

    def _send_complete(self, message: JsonObject) -> None:
        self._send(200, "application/json", json.dumps(message))

    def _send_stream(self, message: JsonObject) -> None:
        events = "".join(f"event: {data['type']}\ndata: {json.dumps(data)}\n\n" for data in _stream_events(message))
        self._send(200, "text/event-stream", events)

    def _send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(data)), "connection": "close"}.items():
            self.send_header(name, value)
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(data)


def _make_message(answer: Answer, number: int, use: CacheUse) -> JsonObject:
    content: list[JsonObject] = [{"type": "text", "text": answer.text}] if answer.text else []
    for index, call in enumerate(answer.calls):
        content.append(
            {
                "type": "tool_use",
                "id": call.id or f"toolu_{number}_{index}",
                "name": call.tool,
                "input": _read_arguments(call),
            }
        )
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-bough",
        "content": content,
        "stop_reason": "tool_use" if answer.calls else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": use.uncached,
            "cache_read_input_tokens": use.read,
            "cache_creation_input_tokens": use.written,
            "output_tokens": max(1, len(json.dumps(content)) // 4),
        },
    }


def _read_arguments(call: ServerCall) -> JsonObject:
    return cast("JsonObject", json.loads(call.arguments)) if isinstance(call.arguments, str) else call.arguments


def _stream_events(message: JsonObject) -> Iterator[JsonObject]:
    """Yield the events of a stream: the message without content, each block in pieces, and the stop reason."""
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        is_text = block["type"] == "text"
        yield {
            "type": "content_block_start",
            "index": index,
            "content_block": {**block, **({"text": ""} if is_text else {"input": {}})},
        }
        content = block["text"] if is_text else json.dumps(block["input"])
        for start in range(0, len(content), _CHUNK_CHARS):
            piece = content[start : start + _CHUNK_CHARS]
            delta = (
                {"type": "text_delta", "text": piece}
                if is_text
                else {"type": "input_json_delta", "partial_json": piece}
            )
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
        "usage": message["usage"],
    }
    yield {"type": "message_stop"}
