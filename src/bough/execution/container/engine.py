"""A container engine of this machine: how it is reached, and what its errors mean."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from bough.errors import ExecutorError, SandboxUnavailable

DEFAULT_HOST = "unix:///var/run/docker.sock"
"""Where an engine listens unless `DOCKER_HOST` says otherwise."""


def connect(host: str | None = None) -> Any:
    """Return a client of the engine at `host`; None: as the environment says. Blocks.

    Raises:
        SandboxUnavailable: The SDK is missing, or no engine answers.
    """
    try:
        import docker
        from docker import errors
    except ImportError as error:
        raise SandboxUnavailable("The docker SDK is not installed.", hint="pip install 'bough[docker]'") from error
    try:
        _knock(host or os.environ.get("DOCKER_HOST", DEFAULT_HOST))
        return docker.DockerClient(host) if host else docker.from_env()
    except (errors.DockerException, OSError) as error:
        raise SandboxUnavailable(f"No container engine answers: {error}", hint="apt-get install docker.io") from error


def parse_socket_path(host: str | None) -> str:
    """Return the path of the socket of the engine at `host`, as `connect` takes it; empty where it has none."""
    url = host or os.environ.get("DOCKER_HOST", DEFAULT_HOST)
    return url.removeprefix("unix://") if url.startswith("unix://") else ""


def engine_errors() -> tuple[type[Exception], ...]:
    """Return what the SDK raises when the engine refuses, or does not answer."""
    import requests
    import urllib3
    from docker import errors

    return (errors.DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError)


def is_refusal(error: Exception) -> bool:
    """Whether the engine is well and has refused a request."""
    from docker import errors

    return isinstance(error, errors.APIError) and bool(error.is_client_error())


@contextmanager
def explain_failure(message: str) -> Generator[None]:
    """Raise what the engine refuses, or fails at, as an error that begins with `message`.

    Raises:
        ExecutorError: The engine refused, or did not answer.
    """
    try:
        yield
    except (OSError, *engine_errors()) as error:
        raise ExecutorError(f"{message}: {error}", hint="Check that the container engine is running.") from error


def _knock(host: str) -> None:
    """Connect to a local engine's socket once; the SDK leaves its own open when nobody listens.

    Raises:
        OSError: Nobody listens.
    """
    path = host.removeprefix("unix://")
    if path != host:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
            knocking.connect(path)
