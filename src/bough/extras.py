"""The extra of bough that installs a missing package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bough.errors import Unavailable

EXTRAS: Final[Mapping[str, str]] = {
    "a2a": "a2a",
    "docker": "docker",
    "duckdb": "evals",
    "fastapi": "server",
    "google.cloud.bigquery": "bigquery",
    "ibis": "evals",
    "jinja2": "evals",
    "multipart": "server",
    "numpy": "evals",
    "pandas": "evals",
    "procrastinate": "postgres",
    "prometheus_client": "server",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "pydantic_evals": "evals",
    "python_multipart": "server",
    "sklearn": "evals",
    "sqlglot": "evals",
    "sse_starlette": "server",
    "starlette": "server",
    "uvicorn": "server",
    "websockets": "server",
}
"""Extras by the import name of a package that bough itself does not require."""


def missing_package(error: ImportError) -> Unavailable | None:
    """Return an error that names the extra to install; None if no extra of bough installs the package."""
    package = (error.name or "").partition(".")[0]
    if (error.name or "") not in EXTRAS and package not in EXTRAS:
        return None
    return explain_missing_package(error, "this")


def explain_missing_package(error: ImportError, name: str) -> Unavailable:
    """Return an error that says which package `name` needs, and how to install it."""
    package = error.name or ""
    extra = EXTRAS.get(package) or EXTRAS.get(package.partition(".")[0])
    hint = f"pip install 'bough[{extra}]'" if extra else f"pip install {package}"
    return Unavailable(f"{name} needs the package {package.partition('.')[0]}", hint=hint)
