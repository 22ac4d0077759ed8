"""`bough serve`: safe addresses, the listener socket, uvicorn, shutdown."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from bough.errors import PermissionDenied, Unavailable
from bough.server.bounds.tenants import reload_at_sighup
from bough.server.requests.connection import BoundedH11Protocol, BoundedSocketProtocol, OpenConnections
from bough.server.settings import ServerSettings

_BACKLOG = 2048
_OTHER_DESCRIPTORS = 256
_WATCHER = "_shutdown_watcher"


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_safe_bind(host: str, *, has_keys: bool, unsafe: bool) -> None:
    """Check that a server without keys is reachable from this machine only.

    Raises:
        PermissionDenied: Other machines could reach it.
    """
    if not is_loopback(host) and not has_keys and not unsafe:
        raise PermissionDenied(
            f"a server without keys does not listen on {host}: everybody could use it",
            hint="create a key with `bough keys create NAME`, or listen on 127.0.0.1",
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a listener socket; port 0 chooses a free port.

    Raises:
        Unavailable: The address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be given: asyncio disables Nagle's algorithm only on sockets whose protocol is IPPROTO_TCP. With
    # the algorithm, the body of a response waits up to 40 ms for the acknowledgement of its head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error}", hint="choose another --port") from error
    listener.setblocking(False)
    return listener


class Server(uvicorn.Server):
    """A uvicorn server that reports when it is ready, and ends streams before it waits for connections.

    Args:
        ready: Called when the server accepts requests.
        drain: Called at the first signal; ends the streams.
        hand_over: Called at the second signal; hands over the running tasks at once.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], None],
        drain: Callable[[], None],
        hand_over: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._drain = drain
        self._hand_over = hand_over

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal; at the second one, hand over tasks and cancel requests. The exit code is 0."""
        if self.should_exit:
            self._hand_over()
            for task in self.server_state.tasks:
                task.cancel()
        self.should_exit = True

    def stop(self) -> None:
        """Stop as after a signal; callable from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting requests, then call `ready`."""
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams before uvicorn waits for open connections, or it would wait for ever."""
        self._drain()
        await super().shutdown(sockets)


async def serve(app: FastAPI, settings: ServerSettings, listener: socket.socket, *, ready: Callable[[], None]) -> None:
    """Serve until a signal arrives. A second signal stops at once.

    Args:
        ready: Called when the server accepts requests.

    Raises:
        Unavailable: The application could not start; its own error is the cause.
    """
    connections = OpenConnections(_compute_connection_limit(settings))
    options: dict[str, Any] = {
        "http": BoundedH11Protocol.with_limits(settings.read_seconds, settings.send_seconds, connections),
        "ws": BoundedSocketProtocol.with_limits(settings.send_seconds, connections),
        "ws_max_size": settings.message_bytes,
        "ws_ping_interval": settings.heartbeat_seconds,
        "ws_ping_timeout": settings.heartbeat_seconds * 2,
        "timeout_keep_alive": settings.keep_alive_seconds,
        "timeout_graceful_shutdown": max(1, round(settings.shutdown_seconds)),
        "proxy_headers": bool(settings.trusted_proxies),
        "forwarded_allow_ips": list(settings.trusted_proxies),
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "lifespan": "on",
    }
    server = Server(uvicorn.Config(app, **options), ready, lambda: _drain(app), lambda: _hand_over(app))
    app.state.stop = server.stop
    try:
        with reload_at_sighup(lambda: _reload(app)):
            await server.serve(sockets=[listener])
    finally:
        await _end_stream_watchers()
    if not server.started:
        startup_error: BaseException | None = getattr(app.state, "startup_error", None)
        raise startup_error or Unavailable("the server could not start", hint="see the log")


def _compute_connection_limit(settings: ServerSettings) -> int:
    """Return the maximum number of connections. Some of the process's descriptors are left for other uses."""
    hard_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard_limit == resource.RLIM_INFINITY:
        return settings.connections
    return min(settings.connections, max(2, hard_limit - _OTHER_DESCRIPTORS))


def _raise_descriptor_limit(required_descriptors: int) -> None:
    """Raise the process's limit of open descriptors as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < required_descriptors:
        raised = required_descriptors if hard == resource.RLIM_INFINITY else min(required_descriptors, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, raised), hard))


async def _end_stream_watchers() -> None:
    """Cancel the task that sse-starlette starts with the first stream to watch for a shutdown, and never ends.

    Otherwise the task would still be pending when the loop is closed, and the thread's next server would start none.
    """
    watchers = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == _WATCHER]
    for task in watchers:
        task.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)


def _drain(app: FastAPI) -> None:
    services = getattr(app.state, "services", None)
    if services is not None:
        services.draining = True
        services.broadcasts.drain()
        for callback in services.on_drain:
            callback()
        services.runs.drain(services.server.shutdown_seconds)


def _reload(app: FastAPI) -> None:
    services = getattr(app.state, "services", None)
    if services is not None:
        services.rules.reload()


def _hand_over(app: FastAPI) -> None:
    services = getattr(app.state, "services", None)
    if services is not None:
        services.runs.hand_over_now()


def run_server(app: FastAPI, settings: ServerSettings, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve in a new event loop until a signal arrives. Changes limits and the garbage collector of the process."""

    def report_ready() -> None:
        gc.collect()
        gc.freeze()  # or each full collection would scan all imported modules, while readers wait
        ready()

    _raise_descriptor_limit(settings.connections + _OTHER_DESCRIPTORS)
    asyncio.run(serve(app, settings, listener, ready=report_ready))
