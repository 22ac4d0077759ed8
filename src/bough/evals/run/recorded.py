"""Recorded attempts: agent and judge replay recorded responses; tools and scripts still run.

`<case>.bough` is the bundle of the first attempt at a case, `<case>.judge-N.bough` the judge's calls, in their order.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from uuid import UUID

import anyio
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ToolCallPart

from bough.agents.models.replay import ReplayModel
from bough.agents.spec import AgentSpec
from bough.errors import NotFound, StoreError
from bough.evals.judge.judge import Judge
from bough.evals.run.folder import plain_name
from bough.evals.run.plan import PlannedAttempt
from bough.evals.run.summary import AttemptResult
from bough.events import open_store
from bough.events.model import ModelResponded
from bough.events.store import EventStore, StoreAdmin


def recording_name(case: str, side: str = "") -> str:
    """Return the file name prefix of a case's recordings."""
    return plain_name(f"{case}@{side}" if side else case)


async def record_attempt(store: EventStore, result: AttemptResult, folder: Path) -> None:
    """Write the bundles of an attempt and of its judge's calls; attempts after the first are not recorded.

    Raises:
        StoreError: A file cannot be written.
    """
    if result.attempt != 1 or result.conversation is None:
        return
    name = recording_name(result.case, result.side)
    files = {f"{name}.bough": result.conversation}
    files |= {f"{name}.judge-{number}.bough": id for number, id in enumerate(result.judge, 1)}
    for file, conversation in files.items():
        bundle = io.BytesIO()
        await store.export(UUID(conversation), bundle)
        try:
            await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
            await anyio.Path(folder / file).write_bytes(bundle.getvalue())
        except OSError as error:
            raise StoreError(f"cannot write {folder / file}: {error.strerror}", hint="use another folder") from error


class Recordings:
    """The recorded responses of a run's cases.

    Attributes:
        folder: Folder with the bundles.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._agent: dict[str, list[ModelResponse]] = {}
        self._judge: dict[str, list[ModelResponse]] = {}

    @classmethod
    async def load(cls, folder: Path, names: Sequence[str]) -> Recordings:
        """Return the recordings of cases; a missing recording raises no error before its attempt starts.

        Args:
            names: The names that `recording_name` returns.

        Raises:
            InvalidInput: A file is not a bundle.
        """
        recordings = cls(folder)
        store = await open_store("memory:")
        try:
            for name in names:
                path = anyio.Path(folder / f"{name}.bough")
                if await path.exists():
                    recordings._agent[name] = await _read_responses(store, await path.read_bytes())
                for number in count(1):
                    path = anyio.Path(folder / f"{name}.judge-{number}.bough")
                    if not await path.exists():
                        break
                    responses = await _read_responses(store, await path.read_bytes())
                    recordings._judge.setdefault(name, []).extend(responses)
        finally:
            await store.aclose()
        return recordings

    def replace_model(self, planned: PlannedAttempt, spec: AgentSpec) -> AgentSpec:
        """Return the agent with the recorded responses as its model.

        Raises:
            NotFound: The case has no recording.
        """
        name = recording_name(planned.case.id, planned.side)
        if name not in self._agent:
            raise NotFound(f"nothing is recorded for {planned.case.id!r}", hint=f"{self.folder} has no {name}.bough")
        return spec.model_copy(update={"model": ReplayModel(self._agent[name])})

    def judge_for(self, planned: PlannedAttempt, votes: int) -> Judge:
        """Return a judge that replays the recorded responses of the case's judge, if there are any."""
        name = recording_name(planned.case.id, planned.side)
        responses = self._judge.get(name, [])
        by_tool = any(isinstance(part, ToolCallPart) for response in responses for part in response.parts)
        return Judge(ReplayModel(responses), votes, by_tool=by_tool)


async def _read_responses(store: StoreAdmin, bundle: bytes) -> list[ModelResponse]:
    """Return the responses of the conversation in a bundle, in order."""
    record = await store.import_(io.BytesIO(bundle))
    raw = [
        stored.event.response
        async for stored in store.read(record.id)
        if stored.kind == "ModelResponded" and isinstance(stored.event, ModelResponded)
    ]
    return [message for message in ModelMessagesTypeAdapter.validate_python(raw) if isinstance(message, ModelResponse)]
