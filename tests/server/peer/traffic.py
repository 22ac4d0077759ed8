"""What passes between a client and the server: requests in order, and of answers and frames what they are made of.

Ids and addresses are replaced by names, so that the same requests can be sent to another server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NAME = re.compile(r"<(\w+)>")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OPEN_OBJECTS = frozenset({"data", "value", "arguments", "spec", "agent", "changes", "run"})
"""Objects whose names are not the server's to choose."""


@dataclass
class Traffic:
    """What was recorded.

    Attributes:
        names: What texts are called instead; ids are added as they come.
        answers: By method and path, what the answers are made of; `frames` by kind.
    """

    names: dict[str, str]
    requests: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    frames: dict[str, Any] = field(default_factory=dict)

    def add(self, method: str, path: str, query: str, body: bytes, status: int, answer: bytes) -> None:
        """Keep a request that was not kept yet, and merge the answer's shape with those of its route."""
        request: dict[str, Any] = {"method": method, "path": self.name(path), "query": self.name(query)}
        request |= {"body": self._body(body), "status": status}
        if is_json(answer):
            # Told apart from ids that the client made: those are known from a request before.
            known = {*self.names}
            self.name(answer.decode())
            ids = {self.names[id]: where for id, where in places_of(json.loads(answer)) if id not in known}
            request |= {"ids": ids} if ids else {}
        if method != "GET" or request not in self.requests:
            self.requests.append(request)
        if is_json(answer):
            route = route_of(method, path)
            self.answers[route] = merge(self.answers.get(route), shape_of(json.loads(answer)))

    def add_frame(self, text: str) -> None:
        """Merge the shape of a frame with those of its kind."""
        frame = json.loads(text)
        self.frames[frame["kind"]] = merge(self.frames.get(frame["kind"]), shape_of(frame))

    def name(self, text: str) -> str:
        """Return a text with ids and what else differs from run to run replaced by names."""
        for said, name in self.names.items():
            text = text.replace(said, f"<{name}>")
        return _UUID.sub(lambda found: self._name_of_id(found[0]), text)

    def as_json(self) -> str:
        """Return it as it is kept."""
        parts = [f'{{"client": "openhands-sdk 1.58.2", "answers": {_lines_of(self.answers)}']
        parts += [f'"frames": {_lines_of(self.frames)}']
        requests = ",\n".join(json.dumps(self._without_unused(request)) for request in self.requests)
        return ",\n".join(parts) + f', "requests": [\n{requests}\n]}}\n'

    def _without_unused(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a request without the ids that no request says: how many events a run makes may change."""
        said = set(_NAME.findall(json.dumps([{**each, "ids": None} for each in self.requests])))
        ids = {name: where for name, where in request.get("ids", {}).items() if name in said}
        return {**request, "ids": ids} if ids else {key: each for key, each in request.items() if key != "ids"}

    def _body(self, body: bytes) -> str | None:
        return self.name(body.decode()) if body else None

    def _name_of_id(self, id: str) -> str:
        return f"<{self.names.setdefault(id, f'id{len(self.names)}')}>"


class Recorder:
    """An ASGI middleware that keeps what passes."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, and keep it."""
        sent, answered, status = b"", b"", 0

        async def receiving() -> Message:
            nonlocal sent
            message = await receive()
            sent += message.get("body", b"")
            return message

        async def sending(message: Message) -> None:
            nonlocal answered, status
            status = message.get("status", status)
            answered += message.get("body", b"")
            if message["type"] == "websocket.send":
                self._traffic.add_frame(message["text"])
            await send(message)

        await self._app(scope, receiving, sending)
        if scope["type"] == "http":
            query = unquote(scope["query_string"].decode())
            self._traffic.add(scope["method"], scope["path"], query, sent, status, answered)


def places_of(value: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str, list[str | int]]]:
    """Yield the ids in a JSON value, each with the names and indices that lead to it."""
    if isinstance(value, dict):
        for name, each in cast("dict[str, Any]", value).items():
            yield from places_of(each, (*where, name))
    elif isinstance(value, list):
        for index, each in enumerate(cast("list[Any]", value)):
            yield from places_of(each, (*where, index))
    elif isinstance(value, str) and _UUID.fullmatch(value):
        yield value, list(where)


def _lines_of(shapes: Mapping[str, Any]) -> str:
    """Return shapes as JSON, one a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(shapes[name], sort_keys=True)}" for name in sorted(shapes)]
    return "{\n" + ",\n".join(lines) + "\n}"


def route_of(method: str, path: str) -> str:
    """Return method and path, ids replaced by a mark."""
    return f"{method} {_UUID.sub('{id}', path)}"


def is_json(answer: bytes) -> bool:
    """Whether an answer is JSON."""
    return answer[:1] in (b"{", b"[")


def shape_of(value: Any, name: str = "") -> Any:
    """Return what a JSON value is made of: the names and shapes of its fields, by kind where it has one."""
    if isinstance(value, dict):
        if name in _OPEN_OBJECTS:
            return ["object"]
        fields = {key: shape_of(each, key) for key, each in cast("dict[str, Any]", value).items()}
        return {"=" + str(value["kind"]): fields} if isinstance(value.get("kind"), str) else {"=": fields}
    if isinstance(value, list):
        shapes = [shape_of(each, name) for each in cast("list[Any]", value)]
        return {"[]": _merge_all(shapes)}
    return [type(value).__name__]


def merge(a: Any, b: Any) -> Any:
    """Return a shape that both fit; a field that only one has gets a question mark."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, list) and isinstance(b, list):
        return sorted({*a, *b})
    if isinstance(a, list) or isinstance(b, list):
        types, shape = (a, b) if isinstance(a, list) else (b, a)
        return shape | {"or": sorted({*types, *shape.get("or", [])})}
    return {key: _merge_part(key, a.get(key), b.get(key)) for key in sorted({*a, *b})}


def _merge_part(key: str, a: Any, b: Any) -> Any:
    if not key.startswith("=") or a is None or b is None:
        return merge(a, b)
    names = {name.rstrip("?") for name in (*a, *b)}
    merged: dict[str, Any] = {}
    for name in sorted(names):
        both = (_find(a, name), _find(b, name))
        always = name in a and name in b
        merged[name if always else f"{name}?"] = merge(*both)
    return merged


def _find(fields: Mapping[str, Any], name: str) -> Any:
    return fields.get(name, fields.get(f"{name}?"))


def _merge_all(shapes: Iterable[Any]) -> Any:
    merged: Any = None
    for shape in shapes:
        merged = merge(merged, shape)
    return merged


def find_misfit(shape: Any, value: Any, where: str = "") -> str | None:
    """Return where a value does not fit a shape; None where it does. What was never seen fits nothing."""
    if isinstance(shape, list):
        named = "object" if isinstance(value, dict) else type(value).__name__
        return None if named in shape else f"{where}: {named} is none of {shape}"
    if shape is None:
        return f"{where}: nothing was there" if value is not None else None
    if isinstance(value, list):
        if "[]" not in shape:
            return f"{where}: a list"
        found = (find_misfit(shape["[]"], each, f"{where}[]") for each in cast("list[Any]", value))
        return next((each for each in found if each), None)
    if isinstance(value, dict):
        return _find_misfit_of_object(shape, cast("dict[str, Any]", value), where)
    return None if type(value).__name__ in shape.get("or", ()) else f"{where}: {type(value).__name__}"


def _find_misfit_of_object(shape: Mapping[str, Any], value: dict[str, Any], where: str) -> str | None:
    kind = "=" + value["kind"] if isinstance(value.get("kind"), str) else "="
    if kind not in shape:
        return f"{where}: of kind {kind}"
    fields = shape[kind]
    if missing := [name for name in fields if not name.endswith("?") and name not in value]:
        return f"{where}: {missing[0]} is missing"
    for name, each in value.items():
        if (known := _find(fields, name)) is None:
            return f"{where}: {name} is new"
        if misfit := find_misfit(known, each, f"{where}.{name}"):
            return misfit
    return None
