"""Journeys: a fork with its own files reads the skills of its copy, which are trusted if they are what was trusted."""

from __future__ import annotations

import json

import pytest
from tests.journeys.conftest import Person

_SKILL = "---\nname: {}\ndescription: Says hello.\n---\nGreet.\n"
_SCRIPT = "#!/bin/sh\necho hello\n"

_PROGRAM = """
import json, subprocess, sys
from pathlib import Path
from uuid import uuid4

from bough import AgentSpec, Conversation
from bough.errors import BoughError
from bough.skills import TrustStore
from bough.testing import ScriptedModel

home, workspace, policy = Path.home() / ".bough", Path.cwd(), sys.argv[1]
TrustStore(home).trust(workspace)
Path(".agents/skills/other/scripts/hello.sh").write_text("#!/bin/sh\\necho other\\n")
id, seen = uuid4(), {}


def look(fork, name):
    try:
        return str(fork.skills.get(name).path)
    except BoughError as error:
        return error.code


agent = AgentSpec(model=ScriptedModel("a"), discover_skills=True)
with Conversation(agent, workspace=workspace) as source:
    source.send_message("hello")
    source.run()
    with source.fork(workspace=policy, id=id) as fork:
        seen["first"] = [look(fork, "greet"), look(fork, "other")]
        place = str(fork.state.workspace)
    with source.fork(workspace=policy, id=id) as fork:
        seen["again"] = [look(fork, "greet"), look(fork, "other")]
    Path(place, ".agents/skills/greet/scripts/hello.sh").write_text("#!/bin/sh\\necho changed\\n")
    with source.fork(workspace=policy, id=id) as fork:
        seen["changed"] = [look(fork, "greet"), look(fork, "other")]
print(json.dumps({"place": place, **seen}))
"""


@pytest.mark.parametrize("policy", ["copy", "worktree"])
def test_a_fork_uses_and_trusts_the_skills_of_its_copy(person: Person, policy: str) -> None:
    for name in ("greet", "other"):
        folder = f".agents/skills/{name}"
        person.write({f"{folder}/SKILL.md": _SKILL.format(name), f"{folder}/scripts/hello.sh": _SCRIPT})
    person.try_command(["git", "init", "-q"])
    person.try_command(["git", "add", "."])
    person.try_command(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "start"])

    result = json.loads(person.python(_PROGRAM, policy).stdout.splitlines()[-1])

    own = f"{result['place']}/.agents/skills/greet/SKILL.md"
    assert result["first"] == [own, "permission_denied"]  # the other one changed after it was trusted
    assert result["again"] == result["first"]
    assert result["changed"] == ["permission_denied", "permission_denied"]
