"""The skills that the operator has installed: what they are, their files, and which a message would bring in."""

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
_FILE_BYTES = 1 << 20


class SkillSummary(BaseModel):
    """A skill as a list shows it; one that is not trusted is offered to no agent."""

    name: str
    description: str
    kind: str
    source: str
    trusted: bool


class SkillInfo(SkillSummary):
    """A skill in full, but for the contents of its files."""

    content: str
    content_hash: str
    files: list[str]
    triggers: list[str]
    allowed_tools: list[str] | None
    servers: list[str]
    diagnostics: list[JsonObject]


class MatchForm(Form):
    """A message; of which agent's skills, or of which conversation's. Without both: of the default agent."""

    text: Annotated[str, StringConstraints(min_length=1, max_length=1 << 20)]
    agent: str | None = Field(default=None, max_length=64)
    conversation: UUID | None = None


class SkillMatch(BaseModel):
    """A skill that the message brings in; `why` is an explanation for people."""

    name: str
    trigger: str
    keyword: str
    why: str


@routes.get("/api/skills")
async def list_skills(access: SkillReader) -> list[SkillSummary]:
    """Return the skills that the operator has installed."""
    registry = await _open_registry(access)
    matches = [(item, True) for item in registry.list_all()] + [(item, False) for item in registry.withheld]
    return [_summarize(item, trusted=trusted) for item, trusted in matches]


@routes.get("/api/skills/{name}")
async def get_skill(name: str, access: SkillReader) -> SkillInfo:
    """Return a skill: its instructions, its files, what triggers it, what it may use."""
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
            return read_resource(folder, path, max_bytes=_FILE_BYTES)
        except LimitExceeded as error:
            raise TooLarge(error.message, hint=error.hint) from error

    headers = {"X-Content-Type-Options": "nosniff"}
    return Response(await asyncio.to_thread(read), media_type="text/plain; charset=utf-8", headers=headers)


@routes.post("/api/skills/match")
async def match_skills(body: MatchForm, access: SkillReader) -> list[SkillMatch]:
    """Return which skills a message would bring in, and why."""
    if body.agent is not None and body.conversation is not None:
        raise InvalidInput("agent and conversation both say whose skills", hint="give one")
    registry = await _open_registry(access, await _find_roots(access, body))
    matches = await asyncio.to_thread(lambda: TriggerIndex(registry.list_all()).match(body.text))
    return [
        SkillMatch(name=item.skill, trigger=item.kind, keyword=item.keyword, why=f"{item.kind}: {item.keyword}")
        for item in matches
    ]


@routes.post("/api/skills", include_in_schema=False)
async def refuse_skill(access: SkillReader) -> Success:
    """Say that skills are installed by the operator."""
    raise NotSupported("skills are the operator's", hint="GET /api/skills; `bough skills add` installs one")


async def _find_roots(access: Access, body: MatchForm) -> tuple[Any, ...]:
    """Return the folders of skills that an agent has besides those of the server.

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
        triggers=list(_list_words(skill.trigger)),
        allowed_tools=None if skill.allowed_tools is None else list(skill.allowed_tools),
        servers=sorted(skill.mcp_tools.get("mcpServers", skill.mcp_tools)),
        diagnostics=diagnostics,
    )


def _list_words(trigger: Trigger | None) -> tuple[str, ...]:
    match trigger:
        case KeywordTrigger():
            return trigger.keywords
        case TaskTrigger():
            return trigger.triggers
        case PathTrigger():
            return trigger.globs
        case None:
            return ()
