"""The OpenAPI document, and its rendering as a page without scripts and without resources of other hosts."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import FastAPI

from bough.server.requests.problems import Problem
from bough.server.requests.routing import SECURITY_SCHEMES
from bough.types import JsonObject

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font-family:ui-monospace,monospace}h2{margin-top:2rem;border-bottom:1px solid}"
    "dt{font-weight:600;margin-top:1rem}@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}"
)


def install(app: FastAPI) -> None:
    """Add the authentication and the schema of error responses to an application's OpenAPI document."""
    make_document = app.openapi

    def extend_document() -> JsonObject:
        document = make_document()
        components: JsonObject = document.setdefault("components", {})
        components["securitySchemes"] = SECURITY_SCHEMES
        schemas: JsonObject = components.setdefault("schemas", {})
        if "Problem" not in schemas:
            schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            schemas["Problem"] = schema
        return document

    app.openapi = extend_document


def render_page(document: JsonObject) -> str:
    """Return the page of an OpenAPI document: each route with its parameters and responses, grouped by tag."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["Other"])[0]
            by_tag.setdefault(tag, []).append(_render_operation(method, path, operation))
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    groups = "".join(f"<h2>{escape(tag)}</h2><dl>{''.join(rows)}</dl>" for tag, rows in by_tag.items())
    head = f'<head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>'
    intro = f'<h1>{title}</h1><p>The machine-readable form is <a href="/openapi.json">/openapi.json</a>.</p>'
    return f'<!doctype html><html lang="en">{head}<body>{intro}{groups}</body></html>'


def _render_operation(method: str, path: str, operation: JsonObject) -> str:
    """Return the HTML of one method of a path: description, parameters, status codes of success."""
    parameters: list[Any] = operation.get("parameters", [])
    names = ", ".join(f"<code>{escape(parameter['name'])}</code>" for parameter in parameters)
    codes = ", ".join(code for code in operation.get("responses", {}) if code.startswith("2"))
    rows = [escape(str(operation.get("description") or operation.get("summary") or ""))]
    rows += [f"Parameters: {names}."] if names else []
    rows += [f"Responses: {escape(codes)}."]
    return f"<dt><code>{method.upper()} {escape(path)}</code></dt><dd>{' '.join(rows)}</dd>"
