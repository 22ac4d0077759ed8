"""The MCP servers of active skills: started with the skill, stopped at the end, their tools prefixed with its name.

Source: OpenHands (`mcp_tools`: load, spawn, register, inject).
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast
from urllib.parse import urlsplit

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.toolsets import AbstractToolset, PrefixedToolset, ToolsetTool

from bough.connect.server_stderr import ServerStderr, hide_values
from bough.connect.tool_names import ToolNames, rename_tool
from bough.effects import find_effect_key
from bough.errors import BoughError, ConnectError, LimitExceeded, PermissionDenied
from bough.execution.base import Guards, Mount
from bough.execution.serve import serve_command
from bough.skills import Skill, SkillRegistry
from bough.skills.run.mcp import McpServer, list_servers
from bough.skills.trust.snapshot import SkillSnapshot
from bough.skills.trust.trust import SkillGrant

if TYPE_CHECKING:
    from pydantic_ai.mcp import CallToolFunc, MCPToolset

SKILL: Final = "/skill"
"""The folder of a skill in the sandbox."""

_CONNECTION_CLOSED: Final = -32000
"""The error code that `mcp` uses for a connection that ended during a call."""

START_SECONDS = 30.0
"""How long a server may take to start."""

CALL_SECONDS = 300.0
"""How long one call of a tool may take."""

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")
"""Environment variables that every server gets in addition to its configured ones; none contains a secret."""

MAX_RESULT_BYTES = 256 << 10
"""How much of a result's text is returned: half from its beginning, half from its end."""

MAX_BLOB_BYTES = 4 << 20
MAX_TOOLS = 128
MAX_DESCRIPTION = 1024
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

TextsByName = Callable[[Any], Mapping[str, str]]
Report = Callable[[Any, BoughError], Awaitable[None]]


@dataclass
class _SkillServer:
    """A server of a skill: how it is started, and its connection while it runs."""

    skill: Skill
    server: McpServer
    make: Callable[[ServerStderr], MCPToolset[Any]]
    mask: Callable[[str], str]
    stderr: ServerStderr | None = None
    toolset: MCPToolset[Any] | None = None
    deaths: int = 0
    restarting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def prefix_tools(self) -> PrefixedToolset[Any] | None:
        """Return the tools of the server, prefixed with the skill's name; None while the server does not run."""
        return None if self.toolset is None else PrefixedToolset(self.toolset, self.skill.name.replace("-", "_"))


def _no_trees(_: Any) -> Mapping[str, str]:
    return {}


class SkillServers(AbstractToolset[Any]):
    """The tools of the MCP servers of all active skills.

    A server's program runs in the sandbox and sees the snapshot of its skill that was activated. It runs outside the
    sandbox only if a person permitted this server by name. A server that cannot be started is reported once and
    omitted; a server that dies is restarted once.

    Args:
        registry: The trusted skills. Only their servers are started.
        active: Returns the names of the active skills, given a tool's deps.
        report: Called for each server that cannot be started, with the deps of the run and the error.
        env: The environment for `${VARIABLES}` in configurations; None for that of this process.
        trees: Returns the digest of the snapshot of each active skill by name, given a tool's deps.
    """

    def __init__(
        self,
        registry: SkillRegistry,
        *,
        active: TextsByName,
        report: Report,
        env: Mapping[str, str] | None = None,
        trees: TextsByName = _no_trees,
    ) -> None:
        self._registry = registry
        self._active = active
        self._report = report
        self._env = os.environ if env is None else env
        self._trees = trees
        self._started: dict[str, list[_SkillServer]] = {}
        self._names = ToolNames()
        self._offered: dict[str, tuple[_SkillServer, str, ToolsetTool[Any]]] = {}
        self._reported_limits: set[str] = set()

    @property
    def id(self) -> str:
        """A name for logs."""
        return "skill-servers"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools of the active skills' servers, starting those that do not run yet."""
        tools: dict[str, ToolsetTool[Any]] = {}
        for name in sorted(self._active(ctx.deps)):
            if name in self._registry:
                for skill_server in await self._start_servers(name, ctx.deps):
                    tools |= await self._list_tools(skill_server, ctx)
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Call a tool of its server, and return its result, shortened if it is too long.

        A server that died is restarted, and the call repeated if the tool is annotated as read-only or idempotent.
        """
        skill_server, server_name, server_tool = self._offered[name]
        end_error: Exception | None = None
        if _belongs_to(tool, skill_server.toolset):
            try:
                return shorten_result(await server_tool.toolset.call_tool(server_name, tool_args, ctx, server_tool))
            except Exception as error:
                if not is_closed(error):
                    raise
                end_error = error
        # The server died in this call or in a concurrent one. If in a concurrent one, this call was not sent, so it
        # can be sent to the new server, even if the tool must not run twice.
        await self._restart(skill_server, ctx.deps, cast("PrefixedToolset[Any]", tool.toolset).wrapped)
        is_offered = name in await self._list_tools(skill_server, ctx)
        if not is_offered or (end_error is not None and not _may_repeat(tool)):
            reason = f": {end_error}" if end_error else ""
            raise ToolFailed(
                f"the MCP server {skill_server.server.name!r} ended during the call{reason}"
            ) from end_error
        _, server_name, server_tool = self._offered[name]
        return shorten_result(await server_tool.toolset.call_tool(server_name, tool_args, ctx, server_tool))

    async def aclose(self) -> None:
        """Stop every server. Idempotent."""
        # Emptied before the awaits, so that a concurrent second close does not stop the same servers.
        started, self._started = self._started, {}
        for skill_server in reversed([server for servers in started.values() for server in servers]):
            await _stop(skill_server)

    async def _list_tools(self, skill_server: _SkillServer, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools of a server under unique names; none if it does not run. Restarts it once if it fails."""
        tools = skill_server.prefix_tools()
        if tools is None:
            return {}
        try:
            server_tools = await tools.get_tools(ctx)
        except Exception as error:  # noqa: BLE001 - any failure of a foreign program is reported and affects no other server
            await self._restart(skill_server, ctx.deps, tools.wrapped, error)
            restarted = skill_server.prefix_tools()
            server_tools = {} if restarted is None else await restarted.get_tools(ctx)
        server = f"{skill_server.skill.name}/{skill_server.server.name}"
        if len(server_tools) > MAX_TOOLS:
            await self._report_tool_limit(server, len(server_tools), ctx.deps)
            server_tools = {name: server_tools[name] for name in sorted(server_tools)[:MAX_TOOLS]}
        names = self._names.name_tools(server, server_tools)
        if (fault := self._names.find_fault(server, names)) is not None:
            await self._report(ctx.deps, fault)
        self._offered |= {name: (skill_server, own_name, server_tools[own_name]) for own_name, name in names.items()}
        return {name: _shorten_description(rename_tool(server_tools[tool], name)) for tool, name in names.items()}

    async def _report_tool_limit(self, server: str, count: int, deps: Any) -> None:
        if server in self._reported_limits:
            return
        self._reported_limits.add(server)
        message = f"the MCP server {server!r} has {count} tools, of which the first {MAX_TOOLS} by name are offered"
        await self._report(deps, LimitExceeded(message, hint="make it offer fewer tools, or split it into two servers"))

    async def _start_servers(self, name: str, deps: Any) -> list[_SkillServer]:
        """Return the servers of an active skill, starting them on the first call."""
        if name not in self._started:
            self._started[name] = []
            try:
                tree = self._trees(deps).get(name, "")
                skill, snapshot = await asyncio.to_thread(self._registry.get_active, name, tree)
                planned = await asyncio.to_thread(self._plan_servers, skill, snapshot, deps)
            except BoughError as error:
                await self._report(deps, error)
                return []
            for skill_server in planned:
                self._started[name].append(skill_server)
                await self._start(skill_server, deps)
        return self._started[name]

    def _plan_servers(self, skill: Skill, snapshot: SkillSnapshot | None, deps: Any) -> list[_SkillServer]:
        """Return the servers of a skill, each with how it is started: in the sandbox, or outside if a person permits.

        Raises:
            InvalidInput: The configuration is invalid.
            PermissionDenied: A server's address is not permitted.
        """
        digest = "" if snapshot is None else snapshot.digest
        grant = self._registry.find_grant(skill, digest) or SkillGrant(digest)
        folder = None if snapshot is None else str(snapshot.folder)
        servers = {server.name: server for server in list_servers(skill, self._env, root=SKILL)}
        host_servers = list_servers(skill, self._env, root=folder) if grant.hosts else ()
        servers |= {server.name: server for server in host_servers if server.name in grant.hosts}
        planned: list[_SkillServer] = []
        for server in servers.values():
            if server.transport != "stdio":
                _check_address(skill, server, grant)
            on_host = server.name in grant.hosts or server.transport != "stdio"
            transport = (
                partial(_make_transport, server, self._env)
                if on_host
                else partial(_make_sandbox_transport, skill, server, snapshot, grant.domains, deps)
            )
            mask = partial(_mask, getattr(deps, "mask", str), hide_values(server.env))
            planned.append(_SkillServer(skill, server, partial(_make_toolset, skill, server, transport), mask))
        return planned

    async def _start(self, skill_server: _SkillServer, deps: Any) -> None:
        """Start a server and set its toolset. A failure is reported, and the toolset stays None."""
        await asyncio.to_thread(import_module, "pydantic_ai.mcp")  # takes 0.7 s, and most runs do not need it
        stderr = skill_server.stderr = ServerStderr(
            f"{skill_server.skill.name}/{skill_server.server.name}", skill_server.mask
        )
        toolset = skill_server.make(stderr)
        try:
            await toolset.__aenter__()
            await toolset.list_tools()
        except Exception as error:  # noqa: BLE001 - any failure of a foreign program is reported and affects no other server
            with suppress(Exception):
                await toolset.__aexit__(None, None, None)
            lines = stderr.lines()
            last_line = f" ({lines[-1]})" if lines else ""
            stderr.close()
            where = (
                "its command or address"
                if skill_server.server.transport != "stdio"
                else f"`{skill_server.server.command}`"
            )
            await self._report(
                deps,
                ConnectError(
                    f"the MCP server {skill_server.server.name!r} of the skill {skill_server.skill.name!r} "
                    f"cannot be started: {error}{last_line}",
                    hint=f"check {where}; it runs in the sandbox unless `bough skills trust --host-servers` names it",
                ),
            )
            return
        skill_server.toolset = toolset

    async def _restart(
        self, skill_server: _SkillServer, deps: Any, dead: AbstractToolset[Any], error: Exception | None = None
    ) -> None:
        """Restart a dead server, unless another call has done so. If it dies again, report it and omit it."""
        # Compared under the lock: several calls may notice that the server died, but only one may restart it.
        async with skill_server.restarting:
            if skill_server.toolset is not dead:
                return
            skill_server.deaths += 1
            await _stop(skill_server)
            if skill_server.deaths == 1:
                await self._start(skill_server, deps)
                return
        reason = f": {error}" if error else ""
        message = (
            f"the MCP server {skill_server.server.name!r} of the skill {skill_server.skill.name!r} ended again{reason}"
        )
        await self._report(deps, ConnectError(message, hint="it is omitted until the end of the conversation"))


async def _stop(skill_server: _SkillServer) -> None:
    toolset, skill_server.toolset = skill_server.toolset, None
    if toolset is not None:
        with suppress(Exception):  # the server has ended, even if closing it failed
            await toolset.__aexit__(None, None, None)
    if skill_server.stderr is not None:
        skill_server.stderr.close()


def _mask(mask_secrets: Callable[[str], str], mask_env: Callable[[str], str], text: str) -> str:
    return mask_env(mask_secrets(text))


def is_closed(error: BaseException) -> bool:
    """Whether an error means that the server has ended. PydanticAI raises a tool error whose cause tells that."""
    answer = getattr(error.__cause__, "error", None)
    return getattr(answer, "code", None) == _CONNECTION_CLOSED or isinstance(error, ConnectionError | EOFError)


def _belongs_to(tool: ToolsetTool[Any], toolset: AbstractToolset[Any] | None) -> bool:
    """Whether a tool that `_list_tools` returned belongs to the present process of its server."""
    return cast("PrefixedToolset[Any]", tool.toolset).wrapped is toolset


def _may_repeat(tool: ToolsetTool[Any]) -> bool:
    hints = cast("dict[str, Any]", (tool.tool_def.metadata or {}).get("annotations") or {})
    return any(bool(hints.get(name)) for name in ("readOnlyHint", "idempotentHint"))


def _shorten_description(tool: ToolsetTool[Any]) -> ToolsetTool[Any]:
    text = tool.tool_def.description or ""
    if len(text) <= MAX_DESCRIPTION:
        return tool
    return replace(tool, tool_def=replace(tool.tool_def, description=text[: MAX_DESCRIPTION - 1] + "…"))


def shorten_result(value: Any) -> Any:
    """Return a tool's result without the middle of long texts and without large blobs. O(size)."""
    match value:
        case str():
            data = value.encode("utf-8", "replace")
            if len(data) <= MAX_RESULT_BYTES:
                return value
            half = MAX_RESULT_BYTES // 2
            gap = f"\n... {len(data) - 2 * half} bytes left out ...\n"
            return data[:half].decode("utf-8", "ignore") + gap + data[-half:].decode("utf-8", "ignore")
        case list():
            items = [shorten_result(item) for item in cast("list[Any]", value)]
            return (
                items
                if _count_characters(items) <= MAX_RESULT_BYTES
                else shorten_result(json.dumps(items, default=str))
            )
        case dict():
            text = json.dumps(value, default=str)
            return cast("dict[str, Any]", value) if len(text) <= MAX_RESULT_BYTES else shorten_result(text)
        case _:
            blob = getattr(value, "data", None)
            if isinstance(blob, bytes) and len(blob) > MAX_BLOB_BYTES:
                return f"[{len(blob)} bytes left out: more than {MAX_BLOB_BYTES >> 20} MiB]"
            return value


def _count_characters(items: list[Any]) -> int:
    """Return the total length of the texts in a list, without blobs, which have a separate limit."""
    return sum(len(str(item)) for item in items if not hasattr(item, "data"))


def _check_address(skill: Skill, server: McpServer, grant: SkillGrant) -> None:
    """Check that a server's address may be used.

    Raises:
        PermissionDenied: It is neither https nor loopback, or its host is not in the skill's grant.
    """
    parts = urlsplit(server.url)
    host = parts.hostname or ""
    if host in _LOOPBACK:
        return
    if parts.scheme != "https":
        raise PermissionDenied(
            f"the address of the MCP server {server.name!r} is not https", hint="use https, or a loopback address"
        )
    if skill.scope in ("project", "installed") and not any(
        host == domain.partition(":")[0] or (domain.startswith("*.") and host.endswith(domain[1:].partition(":")[0]))
        for domain in grant.domains
    ):
        raise PermissionDenied(
            f"the skill {skill.name!r} is not permitted to reach {host}",
            hint=f"write `metadata: {{domains: {host}}}` into its SKILL.md, then `bough skills trust`",
        )


def _make_sandbox_transport(
    skill: Skill,
    server: McpServer,
    snapshot: SkillSnapshot | None,
    domains: Sequence[str],
    deps: Any,
    stderr: ServerStderr,
) -> Any:
    """Return the transport to a program in the sandbox, which sees its skill and the conversation's workspace."""
    from fastmcp.client.transports import StdioTransport

    workspace: Path | None = None if getattr(deps, "readonly", False) else getattr(deps, "workspace", None)
    mounts = [] if snapshot is None else [Mount(source=str(snapshot.folder), target=SKILL)]
    secrets: Callable[[Sequence[str]], Mapping[str, str]] | None = getattr(deps, "secrets", None)
    declared = skill.metadata.get("secrets", "").replace(",", " ").split()
    # Only the secrets that the skill declares: a server must not see all secrets of the conversation.
    env = {**({} if secrets is None else secrets(declared)), **server.env}
    program = server.command if "/" not in server.command else posixpath.normpath(posixpath.join(SKILL, server.command))
    folder = posixpath.normpath(posixpath.join(SKILL, server.cwd or "")) if snapshot is not None else "/work"
    command, environment = serve_command(
        (program, *server.args),
        mounts=mounts,
        folder=folder,
        workspace=None if workspace is None else os.path.realpath(workspace),
        env={"PYTHONDONTWRITEBYTECODE": "1", "SKILL_DIR": SKILL, **env},
        domains=domains,
        guards=getattr(deps, "guards", Guards()),
    )
    return StdioTransport(
        command=command[0], args=command[1:], env=environment, keep_alive=False, log_file=cast("TextIO", stderr)
    )


EFFECT_KEY = "bough/effect-key"
"""The `_meta` field of a `tools/call` request with the key of the tool call; see `bough.effect_key`."""


async def send_effect_key(_: RunContext[Any], call_tool: CallToolFunc, name: str, args: dict[str, Any]) -> Any:
    """Call a tool of an MCP server with the key of the tool call in its metadata."""
    key = find_effect_key()
    return await call_tool(name, args, metadata=None if key is None else {EFFECT_KEY: key})


def _make_toolset(
    skill: Skill, server: McpServer, transport: Callable[[ServerStderr], Any], stderr: ServerStderr
) -> MCPToolset[Any]:
    from pydantic_ai.mcp import MCPToolset

    return MCPToolset(
        transport(stderr),
        id=f"{skill.name}/{server.name}",
        init_timeout=START_SECONDS,
        read_timeout=CALL_SECONDS,
        tool_error_behavior="failed",
        process_tool_call=send_effect_key,
    )


def _make_transport(server: McpServer, env: Mapping[str, str], stderr: ServerStderr) -> Any:
    from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport

    match server.transport:
        case "stdio":
            # Not the whole environment of this process, which contains the keys of model providers.
            passed = {name: env[name] for name in PASSED_ON if name in env}
            return StdioTransport(
                command=server.command,
                args=list(server.args),
                env=passed | dict(server.env),
                cwd=server.cwd,
                keep_alive=False,
                log_file=cast("TextIO", stderr),
            )
        case "http":
            return StreamableHttpTransport(server.url, headers=dict(server.headers))
        case "sse":
            return SSETransport(server.url, headers=dict(server.headers))
