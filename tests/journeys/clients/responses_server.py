"""A provider in the form of OpenAI's Responses API, which keeps the keys that it was asked with."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class ResponsesServer:
    """Where it listens, and the `Authorization` headers of its requests, in order."""

    url: str
    keys: list[str] = field(default_factory=list[str])


@contextmanager
def serve_responses(text: str) -> Iterator[ResponsesServer]:
    """Answer every request with the text, on 127.0.0.1 and a free port, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.keys.append(self.headers["Authorization"])
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            data = stream(text) if asked.get("stream") else json.dumps(make_response(text)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if asked.get("stream") else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = ResponsesServer(f"http://127.0.0.1:{http.server_address[1]}/v1")
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def make_response(text: str | None) -> dict[str, Any]:
    """Return a response: one that has begun for None, else one that is complete."""
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "m1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "r1",
        "object": "response",
        "created_at": 1_790_000_000,
        "model": "test",
        "status": "in_progress" if text is None else "completed",
        "output": [] if text is None else [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if text is None else usage,
    }


def stream(text: str) -> bytes:
    """Return the events of a response."""
    complete = make_response(text)
    [message] = complete["output"]
    begun = {**message, "status": "in_progress", "content": []}
    place = {"item_id": "m1", "output_index": 0, "content_index": 0}
    part = message["content"][0]
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": make_response(None)},
        {"type": "response.output_item.added", "output_index": 0, "item": begun},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []},
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {"type": "response.completed", "response": complete},
    ]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered).encode()
