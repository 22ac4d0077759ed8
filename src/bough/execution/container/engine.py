"""Connect to a container engine of this machine, and explain its errors."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from bough.errors import ExecutorError, SandboxUnavailable

DEFAULT_HOST = "unix:///var/run/docker.sock"
"""The engine's socket unless `DOCKER_HOST` is set."""


def connect(host: str | None = None) -> Any:
    """Return a client of the engine at `host`; None reads the environment. Blocks.

    Raises:
        SandboxUnavailable: The SDK is missing, or no engine responds.
    """
    try:
        import docker
        from docker import errors
    except ImportError as error:
        raise SandboxUnavailable("The docker SDK is not installed.", hint="pip install 'bough[docker]'") from error
    try:
        _check_listening(host or os.environ.get("DOCKER_HOST", DEFAULT_HOST))
        return docker.DockerClient(host) if host else docker.from_env()
    except (errors.DockerException, OSError) as error:
        raise SandboxUnavailable(f"No container engine answers: {error}", hint="apt-get install docker.io") from error


def parse_socket_path(host: str | None) -> str:
    """Return the socket's path for a `host` of `connect`; an empty string if the host is not a socket."""
    url = host or os.environ.get("DOCKER_HOST", DEFAULT_HOST)
    return url.removeprefix("unix://") if url.startswith("unix://") else ""


def engine_errors() -> tuple[type[Exception], ...]:
    """Return the SDK's exceptions for an engine that refuses a request or does not respond."""
    import requests
    import urllib3
    from docker import errors

    return (errors.DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError)


def is_refusal(error: Exception) -> bool:
    """Whether the error means that a working engine refused the request."""
    from docker import errors

    return isinstance(error, errors.APIError) and bool(error.is_client_error())


@contextmanager
def explain_failure(message: str) -> Generator[None]:
    """Convert errors of the engine in the `with` block to an error that begins with `message`.

    Raises:
        ExecutorError: The engine refused the request, or did not respond.
    """
    try:
        yield
    except (OSError, *engine_errors()) as error:
        raise ExecutorError(f"{message}: {error}", hint="Check that the container engine is running.") from error


def _check_listening(host: str) -> None:
    """Check that a local engine accepts connections, because the SDK leaks a socket if it does not.

    Raises:
        OSError: No engine listens.
    """
    path = host.removeprefix("unix://")
    if path != host:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
