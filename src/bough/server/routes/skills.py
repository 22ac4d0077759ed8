"""Routes for installed skills: their descriptions, their files, and which of them a message activates."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from uuid import UUID

from fastapi import Response
from pydantic import BaseModel, Field, StringConstraints

from bough.errors import InvalidInput, LimitExceeded, NotFound, NotSupported, TooLarge
from bough.server.access import Access, SkillReader
from bough.server.bodies.base import Form, Success
from bough.server.requests.routing import router
from bough.skills import Skill, SkillMetadata, SkillRegistry, TriggerIndex
from bough.skills.model import KeywordTrigger, PathTrigger, TaskTrigger, Trigger
from bough.skills.read.resources import read_resource
from bough.types import JsonObject

routes = router("Skills")
_MAX_FILE_BYTES = 1 << 20


class SkillSummary(BaseModel):
    """A skill in a list. Skills that are not trusted are not available to agents."""

    name: str
    description: str
    kind: str
    source: str
    trusted: bool


class SkillInfo(SkillSummary):
    """A skill with its instructions; its files are only named."""

    content: str
    content_hash: str
    files: list[str]
    triggers: list[str]
    allowed_tools: list[str] | None
    servers: list[str]
    diagnostics: list[JsonObject]


class MatchForm(Form):
    """A message, and the agent or the conversation whose skills are matched; without both, the default agent."""

    text: Annotated[str, StringConstraints(min_length=1, max_length=1 << 20)]
    agent: str | None = Field(default=None, max_length=64)
    conversation: UUID | None = None


class SkillMatch(BaseModel):
    """A skill that the message activates. `why` is an explanation for people."""

    name: str
    trigger: str
    keyword: str
    why: str


@routes.get("/api/skills")
async def list_skills(access: SkillReader) -> list[SkillSummary]:
    """Return the installed skills."""
    registry = await _open_registry(access)
    trusted = [_summarize(skill, trusted=True) for skill in registry.list_all()]
    return trusted + [_summarize(skill, trusted=False) for skill in registry.withheld]


@routes.get("/api/skills/{name}")
async def get_skill(name: str, access: SkillReader) -> SkillInfo:
    """Return a skill: its instructions, the names of its files, its triggers and its tools."""
    registry = await _open_registry(access)
    return await asyncio.to_thread(lambda: _describe(registry.get(name)))


@routes.get("/api/skills/{name}/files/{path:path}", response_class=Response)
async def get_skill_file(name: str, path: str, access: SkillReader) -> Response:
    """Return a file of a skill as text."""
    registry = await _open_registry(access)

    def read() -> bytes:
        folder = registry.get(name).folder
        if folder is None:
            raise NotFound("the skill has no files")
        try:
            return read_resource(folder, path, max_bytes=_MAX_FILE_BYTES)
        except LimitExceeded as error:
            raise TooLarge(error.message, hint=error.hint) from error

    headers = {"X-Content-Type-Options": "nosniff"}
    return Response(await asyncio.to_thread(read), media_type="text/plain; charset=utf-8", headers=headers)


@routes.post("/api/skills/match")
async def match_skills(body: MatchForm, access: SkillReader) -> list[SkillMatch]:
    """Return the skills that a message would activate, and why."""
    if body.agent is not None and body.conversation is not None:
        raise InvalidInput("agent and conversation cannot be combined", hint="send one of them")
    registry = await _open_registry(access, await _find_roots(access, body))
    matches = await asyncio.to_thread(lambda: TriggerIndex(registry.list_all()).match(body.text))
    return [
        SkillMatch(name=match.skill, trigger=match.kind, keyword=match.keyword, why=f"{match.kind}: {match.keyword}")
        for match in matches
    ]


@routes.post("/api/skills", include_in_schema=False)
async def refuse_skill(access: SkillReader) -> Success:
    """Report that only the operator can install skills."""
    raise NotSupported("only the operator can install skills", hint="the operator runs `bough skills add`")


async def _find_roots(access: Access, body: MatchForm) -> tuple[Any, ...]:
    """Return the skill folders of an agent, in addition to those of the server.

    Raises:
        NotFound: There is no such conversation.
        InvalidInput: There is no such agent.
    """
    agents = access.services.agents
    if body.conversation is not None:
        access.caller.require("read", "conversations")
        state = await access.services.states.state_of(await access.store.get(body.conversation))
        return tuple(agents.read_recorded(state).skill_roots)
    return tuple(agents.find_named(body.agent).skill_roots) if body.agent is not None else ()


async def _open_registry(access: Access, roots: tuple[Any, ...] = ()) -> SkillRegistry:
    settings = access.services.settings
    return await asyncio.to_thread(
        SkillRegistry.open, settings.home, home=settings.home, roots=(*roots, *settings.skill_roots)
    )


def _summarize(skill: SkillMetadata, *, trusted: bool) -> SkillSummary:
    return SkillSummary(
        name=skill.name, description=skill.description, kind=skill.kind, source=skill.scope, trusted=trusted
    )


def _describe(skill: Skill) -> SkillInfo:
    diagnostics = [
        {name: value for name, value in item.as_dict().items() if name != "path"} for item in skill.diagnostics
    ]
    return SkillInfo(
        **_summarize(skill.summary(), trusted=True).model_dump(),
        content=skill.content,
        content_hash=skill.content_hash,
        files=list(skill.resources.all),
        triggers=list(_list_trigger_words(skill.trigger)),
        allowed_tools=None if skill.allowed_tools is None else list(skill.allowed_tools),
        servers=sorted(skill.mcp_tools.get("mcpServers", skill.mcp_tools)),
        diagnostics=diagnostics,
    )


def _list_trigger_words(trigger: Trigger | None) -> tuple[str, ...]:
    match trigger:
        case KeywordTrigger():
            return trigger.keywords
        case TaskTrigger():
            return trigger.triggers
        case PathTrigger():
            return trigger.globs
        case None:
            return ()
