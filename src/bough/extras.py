"""The extra of bough that installs a missing package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bough.errors import Unavailable

EXTRAS: Final[Mapping[str, str]] = {
    "a2a": "a2a",
    "acp": "acp",
    "ag_ui": "agui",
    "docker": "docker",
    "duckdb": "evals",
    "fastapi": "server",
    "google.cloud.bigquery": "bigquery",
    "ibis": "evals",
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
"""The extra that installs each package, by import name, for packages that bough itself does not require."""


def missing_package(error: ImportError) -> Unavailable | None:
    """Return an error that names the extra to install; None if no extra of bough installs the package."""
    module = error.name or ""
    if module not in EXTRAS and module.partition(".")[0] not in EXTRAS:
        return None
    return explain_missing_package(error, "this")


def explain_missing_package(error: ImportError, name: str) -> Unavailable:
    """Return an error that says which package `name` needs, and how to install it."""
    module = error.name or ""
    package = module.partition(".")[0]
    extra = EXTRAS.get(module) or EXTRAS.get(package)
    hint = f"pip install 'bough[{extra}]'" if extra else f"pip install {module}"
    return Unavailable(f"{name} needs the package {package}", hint=hint)
