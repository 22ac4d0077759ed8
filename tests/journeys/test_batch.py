"""The batch of `examples/programs` is killed in the middle, and continues when it is started again."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from tests.journeys.conftest import ROOT, Person

from bough.testing import OpenAIServer
from bough.testing.openai_server import Received

COMMAND = [sys.executable, str(ROOT / "examples" / "programs" / "batch" / "main.py")]
DOCUMENTS = 200
AT_ONCE = 16
"""How many documents the program asks about at once."""


class Clerk:
    """A model that answers with a kind, and says when it has been asked 60 times."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.is_in_the_middle = threading.Event()

    def answer(self, received: Received) -> str:
        self.questions.append(str(received.body["messages"][-1]["content"]))
        if len(self.questions) >= 60:
            self.is_in_the_middle.set()
        return "refund"


def test_a_batch_that_was_killed_continues_and_repeats_only_what_was_in_flight(person: Person, tmp_path: Path) -> None:
    clerk, url = Clerk(), f"sqlite:///{tmp_path / 'batch.db'}"
    with OpenAIServer([clerk.answer] * 400) as server:
        person.environment |= {
            "MODEL": "openai:gpt-5", "OPENAI_API_KEY": "x", "BOUGH_BASE_URL": server.url, "STORE": url
        }  # fmt: skip
        first = subprocess.Popen(COMMAND, cwd=person.folder, env=person.env, stdout=subprocess.PIPE, text=True)
        assert clerk.is_in_the_middle.wait(100)
        first.kill()
        assert first.communicate()[0] == "", "it was killed before its end"
        second = person.try_command(COMMAND)
    assert second.code == 0, second
    assert "200 documents answered, 0 left" in second.stdout
    asked = Counter(clerk.questions)
    assert len(asked) == DOCUMENTS + 1, "the rules and each document"
    assert sum(asked.values()) <= DOCUMENTS + 1 + AT_ONCE
