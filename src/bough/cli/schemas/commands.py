"""What each command prints with `--json`: the type of `data` in its envelope, and the lines of its stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from bough.cli.schemas.evals import (
    EvalAddData,
    EvalCompareData,
    EvalListData,
    EvalPlanData,
    EvalReportData,
    EvalRunData,
)
from bough.cli.schemas.shared import (
    OPEN,
    BranchData,
    ChatLine,
    ConversationData,
    ConversationLine,
    DamageData,
    DiagnosticData,
    EventData,
    EventLine,
    ExecutedData,
    LinkedTaskData,
    RunLine,
    SkillData,
    TaskTreeData,
)
from bough.conversation.log.turns import TurnCall
from bough.events.base_event import ContentPart, Usage
from bough.health import Check
from bough.tasks import Task, TaskEvent
from bough.types import JsonObject


class CommandsData(TypedDict):
    """The commands of bough."""

    version: str
    """The version of bough."""
    commands: dict[str, list[str]]
    """The verbs of each command; empty where it has none."""


class VersionData(TypedDict):
    """The version of bough."""

    version: str
    """The version of bough."""


class DetachedData(TypedDict):
    """A task that was submitted with --detach."""

    task: str
    """Id of the task."""
    conversation: str
    """The conversation that it will run."""


class DecisionData(TypedDict):
    """A conversation after a decision."""

    conversation: str
    """Its UUID."""
    status: str
    """Its status."""
    waiting: dict[str, Any]
    """Tool calls that still wait for a decision, by id."""


class OneConversationData(TypedDict):
    """A conversation."""

    conversation: ConversationData
    """The conversation after the command."""


class TryData(TypedDict):
    """Branches that were tried from one point."""

    session: str
    """Id of the trial."""
    source: str
    """The conversation they are forks of."""
    at: int
    """Number of events they share with it."""
    check: str | None
    """The command that judges their files."""
    variants: list[dict[str, Any]]
    """name, runs, passed, rate and branches of each."""
    winner: dict[str, str] | None
    """variant and conversation of the best."""


class BisectData(TypedDict):
    """The step that broke a check."""

    conversation: str
    """Its UUID."""
    step: dict[str, Any] | None
    """seq, tool_call_id and tool; null if the check passes at the end."""
    checks: int
    """How often the check ran."""
    start_checked: bool
    """Whether the check ran on the files before the first step."""
    unjudged: list[int]
    """Events whose files the check could not judge."""
    files: list[dict[str, str]]
    """path and change of each file that the step wrote."""


class ReplayData(TypedDict):
    """What a replay found."""

    conversation: str
    """The conversation that ran again."""
    same: bool
    """Whether nothing differs."""
    events: int
    """Number of compared events."""
    differences: list[dict[str, Any]]
    """seq, and the event as recorded and as replayed."""
    output: Any
    """The answer of the replay."""
    error: dict[str, Any] | None
    """Why the replay ended early."""


class ConversationListData(TypedDict):
    """A page of conversations."""

    conversations: list[ConversationData]
    """One page."""
    next_cursor: str | None
    """The value of --cursor for the next page."""
    damaged: list[DamageData]
    """Conversations that cannot be read."""
    hidden: int
    """Number of conversations of other projects that match; --all lists them."""


class ConversationShowData(TypedDict):
    """A conversation and a page of its events."""

    conversation: ConversationData
    """The conversation."""
    tasks: list[LinkedTaskData]
    """Tasks that run it, or that it started."""
    events: list[EventData]
    """One page of its events."""
    next_cursor: int | None
    """The value of --from for the next page."""


class ConversationTreeData(TypedDict):
    """A tree of forks."""

    conversation: str
    """The conversation that was named."""
    root: str
    """The root of its tree."""
    conversations: list[BranchData]
    """All conversations of the tree, each before its forks."""
    tasks: list[LinkedTaskData]
    """Tasks of these conversations."""
    damaged: list[DamageData]
    """Conversations that cannot be read."""


class ConversationTailData(TypedDict):
    """A conversation and its last events."""

    conversation: ConversationData
    """The conversation."""
    events: list[EventData]
    """Its last events."""


class SideData(TypedDict):
    """One side of a comparison."""

    conversation: ConversationData
    """One of the two conversations."""
    events: list[EventData]
    """Its events after the common ones."""
    used: dict[str, Any]
    """requests, tokens and cost_usd of these events."""


class KeptFileData(TypedDict):
    """A file of a workspace at an event."""

    path: str
    """Below the workspace."""
    kind: Literal["file", "executable", "link"]
    """What it was."""
    size: int
    """Its size in bytes."""


class ConversationFilesData(TypedDict):
    """The files of a conversation's workspace at an event."""

    conversation: str
    """The id of the conversation."""
    tree: str
    """The id of all files together."""
    files: list[KeptFileData]
    """The files, by path."""


class ConversationDiffData(TypedDict):
    """Two conversations and where they differ."""

    common_events: int
    """Number of events that both begin with."""
    a: SideData
    """The first."""
    b: SideData
    """The second."""


class HitData(TypedDict):
    """A message that matches."""

    conversation: str
    """Its UUID."""
    short_id: str
    """Its last 8 digits."""
    title: str | None
    """Its title."""
    seq: int
    """The event with the message."""
    who: str
    """Who wrote it: user or model."""
    when: str
    """When (ISO 8601)."""
    snippet: str
    """The text around the first match."""
    matches: list[list[int]]
    """Start and end of each match in the snippet."""


class SearchData(TypedDict):
    """Messages that match."""

    hits: list[HitData]
    """One page, newest first."""
    next_cursor: str | None
    """The value of --cursor for the next page."""


class TurnMessageData(TypedDict):
    """A message that begins a turn."""

    id: str
    """The event of the message."""
    content: list[ContentPart]
    """Its parts."""
    sender: str
    """Who sent it."""


class TurnData(TypedDict):
    """A message and everything up to the next one."""

    number: int
    """From 1."""
    start: int
    """The event of the message."""
    stop: int
    """The first event after the turn."""
    conversation: str
    """The conversation in which it happened."""
    message: TurnMessageData
    """The message that began it."""
    calls: list[TurnCall]
    """Its tool calls."""
    output: str
    """The answer."""
    data: Any
    """The answer of an agent with an output type."""
    status: str
    """How it ended."""
    usage: Usage
    """What it used."""
    files: list[str]
    """Files that it wrote."""
    reason: str
    """Why it did less than was asked."""
    is_open: bool
    """Whether it has not ended."""


class TurnsData(TypedDict):
    """The turns of a conversation."""

    conversation: ConversationData
    """The conversation."""
    turns: list[TurnData]
    """Its turns, first to last."""


class ExportData(TypedDict):
    """An exported conversation."""

    conversation: ConversationData
    """The conversation."""
    format: NotRequired[str]
    """The format of the file."""
    file: NotRequired[str]
    """The file that was written."""
    content: NotRequired[str]
    """What would be written, if no file was named."""


class AdoptData(TypedDict):
    """A conversation that left quarantine."""

    conversation: ConversationData
    """The conversation, out of quarantine."""
    signed_by: str | None
    """The key that signed its bundle."""


class DeleteData(TypedDict):
    """What was deleted, or would be."""

    mode: str
    """tombstone, erase or cascade."""
    deleted: bool
    """False with --dry-run."""
    conversations: list[ConversationData]
    """The conversations that it concerns."""
    erasure: dict[str, Any] | None
    """The receipt of an erasure."""


@with_config(OPEN)
class FileChangesData(TypedDict):
    """Files that were written, or would be; `left` has the paths that stayed as they are."""

    files: list[dict[str, str | int]]
    """path, and change: added, changed, removed or mode; lines_added and lines_removed where files are compared."""
    left: list[str]
    """Paths that stayed as they are."""
    check: NotRequired[dict[str, Any]]
    """command, passed, exit_code, timed_out, killed_by, stdout, stderr and seconds of --check; failed: taken back."""


class CollectData(TypedDict):
    """Kept files that were removed, or would be."""

    packs: int
    """Number of files of kept content."""
    bytes: int
    """Their size."""
    freed_bytes: int
    """What was removed, or would be."""
    missing: list[str]
    """Trees whose files are not in this home."""


class SkillListData(TypedDict):
    """The skills that apply in a folder."""

    skills: list[SkillData]
    """Skills that may be used."""
    withheld: list[SkillData]
    """Skills that are not trusted."""
    diagnostics: list[DiagnosticData]
    """What is wrong with skills here."""


class SkillShowData(SkillData):
    """A skill with its text."""

    content: str
    """Its instructions."""
    content_hash: str
    """SHA-256 of its SKILL.md."""
    files: list[str]
    """Its other files."""
    diagnostics: list[DiagnosticData]
    """What is wrong with it."""


class SkillMatchData(TypedDict):
    """The skills that a message activates."""

    matches: list[dict[str, Any]]
    """skill, kind, keyword, inputs and missing inputs of each that the message activates."""
    nearest: list[SkillData]
    """Skills whose descriptions fit best."""
    untrusted: list[SkillData]
    """Skills that would match and are not trusted."""


class CheckedSkillData(TypedDict):
    """A skill that was checked."""

    path: str
    """Its SKILL.md."""
    name: str | None
    """Its name, if it could be read."""
    loaded: bool
    """Whether it can be used."""
    diagnostics: list[DiagnosticData]
    """What is wrong with it."""


class SkillCheckData(TypedDict):
    """All skills that were checked."""

    skills: list[CheckedSkillData]
    """Each skill that was checked."""


class SkillRunData(ExecutedData):
    """The run of a skill's script."""

    skill: str
    """The skill."""
    script: str
    """The script."""
    status: str
    """ok or error."""


class SkillNewData(TypedDict):
    """A new skill."""

    name: str
    """Its name."""
    path: str
    """Its SKILL.md."""


class SkillLockData(TypedDict):
    """A lock file that was written, or compared."""

    diagnostics: list[DiagnosticData]
    """What differs, or could not be recorded."""
    file: NotRequired[str]
    """The file that was written."""
    skills: NotRequired[list[dict[str, str]]]
    """folder, source and digest of each."""
    folder: NotRequired[str]
    """The folder that was compared, with --verify."""


class SkillsInstalledData(TypedDict):
    """What was installed."""

    skills: list[dict[str, Any]]
    """name, path, source, commit, digest and diagnostics of each."""
    refused: list[dict[str, Any]]
    """name, path, reason and diagnostics of each that was not installed."""


class SkillsChangedData(TypedDict):
    """Skills that were changed."""

    skills: list[dict[str, Any]]
    """Each skill by name, and what changed."""


@with_config(OPEN)
class SkillTrustData(TypedDict):
    """What was trusted; `found` has the names of everything that asks for trust."""

    trusted: NotRequired[list[str]]
    """What is trusted now."""
    skills: NotRequired[list[dict[str, Any]]]
    """What each skill would run."""
    revoked: NotRequired[bool]
    """With --revoke: whether the project was trusted."""


@with_config(OPEN)
class AgentData(TypedDict):
    """An agent of config.yaml; fields beside these as in its entry."""

    name: str
    """Its name."""
    description: str
    """What it is for."""
    model: str | None
    """Its model."""


class AgentListData(TypedDict):
    """The agents of a config.yaml."""

    agents: list[AgentData]
    """The agents of config.yaml."""
    file: str | None
    """The file."""


class AgentCheckData(TypedDict):
    """Mistakes in a config.yaml."""

    faults: list[dict[str, Any]]
    """message, hint and details of each mistake."""


class TaskListData(TypedDict):
    """A page of tasks."""

    tasks: list[Task]
    """Tasks, newest first."""
    next_cursor: NotRequired[str | None]
    """The value of --cursor for the next page."""


class TasksData(TypedDict):
    """Tasks after a command."""

    tasks: list[Task]
    """The tasks after the command."""


class TaskLogsData(TypedDict):
    """The events of a task."""

    events: list[TaskEvent]
    """The events of the task."""


class TaskLine(TypedDict):
    """A task."""

    task: Task
    """A task whose state changed."""


class WorkerLine(TypedDict):
    """The begin or the end of a run of a task."""

    event: Literal["begin", "end"]
    """A run of a task began or ended."""
    task: str
    """Id of the task."""
    agent: str | None
    """Its agent."""
    attempt: NotRequired[int]
    """Number of this attempt."""
    max_attempts: NotRequired[int]
    """How often it is tried."""
    state: NotRequired[str]
    """Its state after the run."""
    seconds: NotRequired[float]
    """Time that the run took."""
    cost_usd: NotRequired[float | None]
    """What the task has cost."""
    code: NotRequired[str | None]
    """Code of the error that ended it."""


class BudgetData(TypedDict):
    """A budget."""

    id: str
    """Its id."""
    bounds: dict[str, float | None]
    """usd, tokens and requests; null bounds nothing."""
    spent: dict[str, float]
    """What has been used."""
    reserved: dict[str, float]
    """What requests in flight may cost."""
    remaining: dict[str, float | None]
    """What is left of each bound."""


class BudgetShowData(BudgetData):
    """A budget and what spent from it."""

    members: list[dict[str, Any]]
    """conversation, spent and reserved of each that spent from it."""


class BudgetListData(TypedDict):
    """The budgets of a store."""

    budgets: list[BudgetData]
    """All budgets."""


class TenantListData(TypedDict):
    """The tenants of a server."""

    tenants: list[dict[str, str | None]]
    """id, created and disabled of each."""


class TenantData(TypedDict):
    """A tenant."""

    tenant: str
    """The tenant."""
    disabled: bool
    """Whether its keys are refused."""


class KeyListData(TypedDict):
    """The keys of a server."""

    items: list[dict[str, Any]]
    """id, tenant, name, role, scopes, created, expires, used and revoked of each."""


class KeyData(TypedDict):
    """A new key."""

    id: str
    """Its id."""
    key: str
    """Its text, which is never shown again."""
    tenant: str
    """Its tenant."""


class RevokedData(TypedDict):
    """A key that was revoked."""

    id: str
    """Id of the key."""
    revoked: Literal[True]


class UrlData(TypedDict):
    """The address of a server."""

    url: str
    """The address; the command runs on."""


class DoctorData(TypedDict):
    """What works on this machine."""

    works: bool
    """Whether agents and scripts can run here."""
    checks: list[Check]
    """Everything that was looked at."""


class DemoData(TypedDict):
    """The demo's steps."""

    folder: str
    """Where the files are."""
    home: str
    """Its data folder, for BOUGH_HOME."""
    steps: list[dict[str, Any]]
    """command, exit_code and stdout of each step."""


class InitData(TypedDict):
    """A new project."""

    folder: str
    """The project."""
    files: list[str]
    """The files that were written."""
    trusted: bool
    """Whether the skill of the project is trusted."""


class SchemaListData(TypedDict):
    """The schemas."""

    schemas: dict[str, str]
    """What each schema describes, by name."""


class ProblemData(TypedDict):
    """Why a document is invalid."""

    line: int
    """Line of the text, from 1."""
    column: int
    """Column, from 1."""
    path: str
    """The value, for example $.data.events[0].seq."""
    message: str
    """What is wrong."""


class ValidationData(TypedDict):
    """Whether documents are valid."""

    schema: str
    """Name of the schema."""
    valid: bool
    """Whether every document is valid."""
    documents: int
    """Number of documents: lines, or one file."""
    problems: list[ProblemData]
    """What is wrong."""


DATA: Mapping[str, Any] = {
    "bough": CommandsData,
    "version": VersionData,
    "run": DetachedData,
    "fork": OneConversationData,
    **dict.fromkeys(("approve", "reject", "answer"), DecisionData),
    "replay": ReplayData,
    "try": TryData,
    "bisect": BisectData,
    "exec": ExecutedData,
    "doctor": DoctorData,
    "demo": DemoData,
    "init": InitData,
    **dict.fromkeys(("web", "serve", "a2a serve"), UrlData),
    "conv list": ConversationListData,
    "conv show": ConversationShowData | ConversationFilesData | UrlData,
    "conv tree": ConversationTreeData,
    "conv tail": ConversationTailData,
    "conv turns": TurnsData,
    "conv diff": ConversationDiffData | FileChangesData,
    "conv search": SearchData,
    "conv export": ExportData,
    "conv adopt": AdoptData,
    **dict.fromkeys(("conv import", "conv tag"), OneConversationData),
    "conv delete": DeleteData,
    **dict.fromkeys(("conv restore", "conv apply"), FileChangesData),
    "conv collect": CollectData,
    "skills list": SkillListData | SkillShowData,
    "skills show": SkillShowData,
    "skills match": SkillMatchData,
    "skills check": SkillCheckData,
    "skills run": SkillRunData,
    "skills new": SkillNewData,
    "skills lock": SkillLockData,
    "skills add": SkillsInstalledData,
    **dict.fromkeys(("skills update", "skills remove", "skills disable", "skills enable"), SkillsChangedData),
    "skills trust": SkillTrustData,
    "agents list": AgentListData,
    "agents show": AgentData,
    "agents check": AgentCheckData,
    "agents schema": JsonObject,
    "tasks list": TaskListData,
    "tasks show": TaskTreeData,
    "tasks logs": TaskLogsData,
    **dict.fromkeys(("tasks wait", "tasks cancel", "tasks retry"), TasksData),
    "tasks input": TaskLine,
    "budgets list": BudgetListData,
    "budgets show": BudgetShowData,
    "budgets change": BudgetData,
    "tenants list": TenantListData,
    **dict.fromkeys(("tenants disable", "tenants enable"), TenantData),
    "keys list": KeyListData,
    "keys revoke": RevokedData,
    **dict.fromkeys(("keys create", "keys rotate"), KeyData),
    "schema": SchemaListData | ValidationData | JsonObject,
    "eval list": EvalListData,
    "eval add": EvalAddData,
    "eval compare": EvalCompareData,
    "eval report": EvalReportData,
    **dict.fromkeys(("eval skill", "eval data", "eval run", "eval harbor"), EvalRunData | EvalPlanData),
    **dict.fromkeys(("eval show", "eval score", "eval judge"), EvalRunData),
}
"""The type of `data`, by command."""

LINES: Mapping[str, Any] = {
    **dict.fromkeys(("run", "resume", "fork", "approve", "reject", "answer"), RunLine),
    "chat": ChatLine,
    **dict.fromkeys(("conv show", "conv tail"), ConversationLine | EventLine),
    "tasks list": TaskLine,
    "tasks logs": TaskEvent,
    "worker": WorkerLine,
}
"""The lines of the commands that stream, beside the envelope of an error."""
