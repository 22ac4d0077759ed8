"""Programs that use sub-agents, skills, tasks and the orchestrator with the names of agentic_patterns.

Source: agentic_patterns, "Skills, Sub-Agents & Tasks": each program is written anew after an example of that page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journeys.conftest import Person

from bough.testing import OpenAIServer

PROGRAMS = Path(__file__).parent / "seed004"

TASKS = """\
completed It grows. None {'agent_name': 'analyst', 'ticket': 'A-1'} ['completed']
['pending', 'running', 'completed']
['look_up']
True
invalid_input did you mean 'agent_name'? For a label, use a name that differs more
failed no agent named 'analist'; did you mean 'analyst'?
failed True True
running
cancelled
['Analyze revenue trends']
"""

OUTPUTS = {
    "background": "Started.\nKnown.\n",
    "from_config": "coordinator From the file\nat your service\nTrue False\n",
    "hand_off": "billing: The invoice is sent again.\ntechnical: Restart the router.\n",
    "orchestrator": "Q4 was 120.\n20 more.\n2 True\nTrue True True False\n[]\nTrue\nTrue\n",
    "skill_sandbox": "3 analyzed main.py\nread-only\n\n"
    "-1 SCRIPT_NOT_FOUND: skill 'code-review' has no script 'missing.py'; did you mean 'scripts/analyze.py'?\n",
    "skills": """\
[('code-review', 'SKILL.md')]
['code-review']
code-review: Review code for quality, bugs, and security issues.
example-org True
['analyze.py'] True
['rules.md'] True
['report.txt'] True
True False
True
Error: no skill named 'code-revue'. did you mean 'code-review'?
""",
    "sub_agents_dynamic": """\
[You are a market analyst.] the market grows
[You are an accountant.] costs fall
Enter the market.
requests 5
""",
    "sub_agents_fixed": "Summary: revenue grew by a fifth.\nrequests 3\nnodes True\n",
    "tasks": TASKS * 2,
    "worker": """\
pending None None [] {}
True
completed 42 rows
['pending', 'running', 'completed']
['Analyze another one'] None
""",
}


def test_every_program_is_run() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(OUTPUTS)


@pytest.mark.parametrize("name", sorted(OUTPUTS))
def test_a_program_prints_what_its_example_promises(
    person: Person, openai_server: Callable[..., OpenAIServer], name: str
) -> None:
    if name == "from_config":
        person.environment |= {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": openai_server("at your service").url}
    result = person.try_command([sys.executable, PROGRAMS / f"{name}.py"])
    assert (result.code, result.stdout) == (0, OUTPUTS[name]), result.stderr
