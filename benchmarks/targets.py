"""The targets of the figures, in one place. A figure that is not here is measured and has no target.

Where a figure is printed beside two floors, the target is for the strict one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness import Figure


@dataclass(frozen=True)
class Target:
    """A bound for a figure's ratio to its floor, or for its value.

    Attributes:
        least: Whether the figure may not be smaller; otherwise it may not be greater.
        unit: Of the value; empty for the ratio.
    """

    bound: float
    least: bool = False
    unit: str = ""

    def reached(self, figure: Figure) -> bool:
        """Return whether the figure keeps to it.

        Raises:
            ValueError: It has another unit, or no floor to compare it with.
        """
        measured = figure.value if self.unit else figure.ratio
        if measured is None or self.unit not in ("", figure.unit):
            raise ValueError(f"{figure.name}: the target is in {self.unit or 'times the floor'}, the figure is not")
        return measured >= self.bound if self.least else measured <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bound:.3g}{f' {self.unit}' if self.unit else '×'}"


TARGETS: Mapping[str, Target] = {
    "fork of 1000 events, to one insert in one thread": Target(2),
    "fork of 10000 events, to one insert in one thread": Target(2),
    "fork of 100000 events, to one insert in one thread": Target(2),
    "10000 forks of one 10000-event conversation": Target(4, unit="s"),
    "sqlite: Conversation.fork() of 1000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.fork() of 10000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.fork() of 100000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.fork(at=head - 1) of 1000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.fork(at=head - 1) of 10000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.fork(at=head - 1) of 100000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.fork(at=head // 2) of 1000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.fork(at=head // 2) of 10000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.fork(at=head // 2) of 100000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.open of 1000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.open of 10000 events, to an awaited insert": Target(20),
    "sqlite: Conversation.open of 100000 events, to an awaited insert": Target(20),
    "postgres: Conversation.fork() of 1000 events, to an awaited insert": Target(20),
    "postgres: Conversation.fork() of 10000 events, to an awaited insert": Target(20),
    "postgres: Conversation.fork() of 100000 events, to an awaited insert": Target(20),
    "postgres: Conversation.fork(at=head - 1) of 1000 events, to an awaited insert": Target(20),
    "postgres: Conversation.fork(at=head - 1) of 10000 events, to an awaited insert": Target(20),
    "postgres: Conversation.fork(at=head - 1) of 100000 events, to an awaited insert": Target(20),
    "postgres: Conversation.fork(at=head // 2) of 1000 events, to an awaited insert": Target(20),
    "postgres: Conversation.fork(at=head // 2) of 10000 events, to an awaited insert": Target(20),
    "postgres: Conversation.fork(at=head // 2) of 100000 events, to an awaited insert": Target(20),
    "postgres: Conversation.open of 1000 events, to an awaited insert": Target(20),
    "postgres: Conversation.open of 10000 events, to an awaited insert": Target(20),
    "postgres: Conversation.open of 100000 events, to an awaited insert": Target(20),
    "row data of a fork": Target(64, unit="bytes"),
    "append, durable, 1 producers, to raw SQLite in one thread": Target(0.8, least=True),
    "append, durable, 8 producers, to raw SQLite in one thread": Target(0.8, least=True),
    "append, durable, 64 producers, to raw SQLite in one thread": Target(0.7, least=True),
    "sqlite: search of a rare word in 2000 messages, to a read by key": Target(20),
    "sqlite: search of a rare word in 40000 messages, to a read by key": Target(20),
    "sqlite: search of a rare word in 1000000 messages, to a read by key": Target(20),
    "sqlite: search of a frequent word in 2000 messages, to a read by key": Target(20),
    "sqlite: search of a frequent word in 40000 messages, to a read by key": Target(20),
    "sqlite: search of a frequent word in 1000000 messages, to a read by key": Target(20),
    "postgres: search of a rare word in 2000 messages, to a read by key": Target(20),
    "postgres: search of a rare word in 40000 messages, to a read by key": Target(20),
    "postgres: search of a rare word in 1000000 messages, to a read by key": Target(20),
    "postgres: search of a frequent word in 2000 messages, to a read by key": Target(20),
    "postgres: search of a frequent word in 40000 messages, to a read by key": Target(20),
    "postgres: search of a frequent word in 1000000 messages, to a read by key": Target(20),
    "sqlite: append, durable, with an index of messages, to one without": Target(1 / 1.15, least=True),
    "postgres: append, durable, with an index of messages, to one without": Target(1 / 1.15, least=True),
    "load 10000 events, raw, to a select": Target(1.3),
    "load 10000 events, typed": Target(120, unit="ms"),
    "tail 50 of 100000, to a select": Target(2),
    "page of 50 in the middle of 100000, to a select": Target(2),
    "postgres: append, 1 producers, to inserts": Target(1 / 1.3, least=True),
    "postgres: append, 8 producers, to inserts": Target(1 / 1.3, least=True),
    "postgres: fork of 10000 events, to an insert": Target(1.3),
    "postgres: load 10000 events, raw, to a select": Target(1.3),
    "skills: discover 1000, cold index": Target(0.6),
    "skills: discover 10000, cold index": Target(0.6),
    "skills: discover 1000, warm index": Target(0.15),
    "skills: discover 10000, warm index": Target(0.15),
    "skills: match 1,000 skills, short message": Target(2),
    "skills: match 1,000 skills, 10,000 characters": Target(2),
    "execution: cold": Target(2.2),
    "execution: cold, Landlock": Target(5),
    "execution: sixteen at once, Landlock": Target(2),
    "execution: warm": Target(1),
    "execution: stateful": Target(0.3),
    "agent step of 10, hooks that look, against bare + 1 append": Target(1.25),
    "agent step of 10, hooks that may act, against bare + 1 append": Target(1.25),
    "agent step of 100, hooks that look, against bare + 1 append": Target(1.25),
    "agent step of 100, hooks that may act, against bare + 1 append": Target(1.25),
    "agent step of 300, hooks that look, against bare + 1 append": Target(1.25),
    "agent step of 300, hooks that may act, against bare + 1 append": Target(1.25),
    "tasks: what a delegation adds to its agent": Target(3, unit="ms"),
    "tasks: ten delegations at once, to the slowest": Target(1.2),
    "tasks: tasks a second, to their agent and the same writes": Target(0.5, least=True),
    "tasks: growth of a process that waits for 10000": Target(20, unit="MB"),
    "workers: tasks a second, two processes, to bare Procrastinate and its agent": Target(0.8, least=True),
    "workers: take-over after kill -9, this machine": Target(2, unit="s"),
    "workers: cancel of a run in another process": Target(200, unit="ms"),
    "evals: overhead of a case": Target(5, unit="ms"),
    "evals: a case, 8 at once": Target(1 / 6),
    "evals: memory from 100 to 1000 cases": Target(50, unit="MB"),
    "evals: resuming 1000 finished cases": Target(2, unit="s"),
    "evals: overhead of a query": Target(5, unit="ms"),
    "evals: twelve metrics of 10000 events": Target(150, unit="ms"),
    "evals: report of 1000 cases": Target(2, unit="s"),
    "server: GET conversation of 100 events, to a bare route": Target(1.5),
    "server: GET conversation of 10000 events, to a bare route": Target(1.5),
    "server: 200 conversations at once, to one after another": Target(1.2, least=True),
    "server: 1000 readers of one run, p99 of an event": Target(250, unit="ms"),
    "server: memory of a reader": Target(20, unit="KiB"),
    "server: memory after 1200 s of load, to its first minute": Target(1.05),
    "server: memory of an idle conversation, evicted": Target(4, unit="KiB"),
    "server: memory of an idle conversation with a stream of its own": Target(20, unit="KiB"),
    "server: two servers on one Postgres, to one": Target(1.5, least=True),
    "server: interrupt from another server, until the run has ended": Target(200, unit="ms"),
    "startup: bough --help, to import typer": Target(1.8),
    "startup: bough conv list, to import typer": Target(1.8),
    "startup: bough run offline, to import Agent": Target(1.25),
    "startup: import bough": Target(60, unit="ms"),
    "startup: bough --version": Target(150, unit="ms"),
    "startup: bough conv list": Target(250, unit="ms"),
    "startup: bough acp, initialize": Target(1.3),
    "look at 2000 files, nothing changed, to lstat of each": Target(2),
    "look at 2000 files, one changed, to lstat of each": Target(2.5),
    "told path among 2000 files, to lstat of each": Target(0.5),
    "first tree of 2000 files, to git add": Target(0.7),
    "fork with 2000 files, to git worktree add": Target(1.5),
    "bytes of a step of one file among 2000": Target(5_000, unit="bytes"),
    "look at 10000 files, nothing changed, to lstat of each": Target(2),
    "look at 10000 files, one changed, to lstat of each": Target(2.5),
    "told path among 10000 files, to lstat of each": Target(0.5),
    "first tree of 10000 files, to git add": Target(0.7),
    "fork with 10000 files, to git worktree add": Target(1.5),
    "bytes of a step of one file among 10000": Target(5_000, unit="bytes"),
    "budget: 64 conversations that share one": Target(1.1),
    "batch: 200 forks of one conversation, to the model's own time": Target(1.3),
    "web: first paint of 10000 events, beyond 1.5 times its route": Target(100, unit="ms"),
    "web: first paint of a tree of 1000, to its route": Target(300, unit="ms"),
    "web: first visit of a timeline, compressed": Target(120, unit="KB"),
    "web: an event on the screen at 20 a second, 95th percentile": Target(100, unit="ms"),
    "web: memory of the scripts with 100000 events": Target(80, unit="MB"),
}
