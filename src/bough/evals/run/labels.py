"""Asks the judge about every label of a file; the calls are conversations of a separate run."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from bough.evals.converse import ConversationHost
from bough.evals.judge.agreement import JudgedLabel
from bough.evals.judge.judge import Judge, JudgedCase
from bough.evals.judge.label import Label
from bough.evals.run.folder import RunFolder
from bough.events import open_store
from bough.execution.named import executor_named
from bough.settings import Settings


async def judge_labels(
    judge: Judge, labels: Sequence[Label], folder: RunFolder, settings: Settings, *, jobs: int = 4
) -> list[JudgedLabel]:
    """Return the judge's verdict on each label, in order; at most `jobs` calls run at once.

    Raises:
        StoreError: The run's store cannot be opened.
    """
    judged: list[JudgedLabel | None] = [None] * len(labels)
    limiter = anyio.CapacityLimiter(jobs)
    workspace = folder.path / "judge"
    workspace.mkdir(exist_ok=True)
    store = await open_store(folder.store_url)
    executor = executor_named(settings.executor, packages=settings.packages)
    host = ConversationHost(store=store, settings=settings, executor=executor)

    async def judge_label(index: int, label: Label) -> None:
        async with limiter:
            tags = {"eval.run": folder.run, "eval.case": label.id[:200], "eval.role": "judge"}
            case = JudgedCase(
                key=f"{folder.run}/{label.id}", trace=label.to_trace(), rubrics=[label.to_rubric()], tags=tags
            )
            judgement = await judge.judge(case, host, workspace)
        (verdict,) = judgement.verdicts
        judged[index] = JudgedLabel(
            id=label.id,
            label=label.label,
            judged=verdict.verdict,
            rationale=verdict.rationale,
            conversation=judgement.conversations[0],
        )

    try:
        async with anyio.create_task_group() as group:
            for index, label in enumerate(labels):
                group.start_soon(judge_label, index, label)
    finally:
        await executor.aclose()
        await store.aclose()
    return [verdict for verdict in judged if verdict is not None]
