"""bough's executors inside the real ADK, which needs an environment of its own: it wants older Google packages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, json, os, pathlib, sys, warnings
warnings.simplefilter("ignore")
from bough.errors import BoughError
from bough.execution import LocalSandboxCodeExecutor
from bough.execution.adapters.adk import BoughCodeExecutor
from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.sessions import InMemorySessionService
from google.adk.skills import load_skill_from_dir
from google.adk.tools.skill_toolset import SkillToolset
from google.adk.tools.tool_context import ToolContext

skill, canary = map(pathlib.Path, sys.argv[1:])

async def main():
    executor = BoughCodeExecutor(executor=LocalSandboxCodeExecutor(), timeout_seconds=5)
    toolset = SkillToolset([load_skill_from_dir(skill)], code_executor=executor)
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="test", user_id="test")
    agent = LlmAgent(name="test", model="none", tools=[toolset])
    invocation = InvocationContext(invocation_id="1", agent=agent, session=session, session_service=sessions)
    tool = next(each for each in await toolset.get_tools() if each.name == "run_skill_script")

    async def script(name, *args):
        return await tool.run_async(
            args={"skill_name": "probe", "file_path": name, "args": list(args)}, tool_context=ToolContext(invocation)
        )

    found = {"greet": await script("scripts/greet.py", "a b", "$HOME"), "shell": await script("scripts/where.sh")}
    found["fails"] = await script("scripts/fails.py")
    found["steals"] = await script("scripts/steals.py", str(canary))
    found["sleeps"] = await script("scripts/sleeps.py")
    run = lambda **request: executor.execute_code(None, CodeExecutionInput(**request))
    files = await asyncio.to_thread(
        run, code="open('out.txt', 'w').write(open('in.csv').read().upper())", input_files=[File("in.csv", "YSxi")]
    )
    found["files"] = [(file.name, file.content.decode(), file.mime_type) for file in files.output_files]
    try:
        await asyncio.to_thread(run, code="pass", input_files=[File("../x", "")])
    except BoughError as error:
        found["refused"] = error.code
    executor.close()
    print(json.dumps(found))

asyncio.run(main())
"""

SCRIPTS = {
    "greet.py": "import sys, platform\nprint('hello', sys.argv[1:])\n",
    "where.sh": "pwd; id -u\n",
    "fails.py": "import sys\nprint('so far'); sys.exit(3)\n",
    "steals.py": "import sys\ntry: print(open(sys.argv[1]).read())\nexcept OSError as e: print(type(e).__name__)\n",
    "sleeps.py": "import time\nprint('begun', flush=True); time.sleep(1000)\n",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scripts_of_adks_own_skill_toolset_run_behind_boughs_sandbox(
    other_environment: Callable[[str], Path], tmp_path: Path
) -> None:
    skill, canary = tmp_path / "probe", tmp_path / "canary"
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: probe\ndescription: Tells where it runs.\n---\nRun a script.\n")
    for name, text in SCRIPTS.items():
        (skill / "scripts" / name).write_text(text)
    canary.write_text("a secret of the host")
    command = [other_environment("adk"), "-c", PROGRAM, skill, canary]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["greet"]["stdout"], found["greet"]["status"]) == ("hello ['a b', '$HOME']\n", "success")
    where, uid = found["shell"]["stdout"].split()
    assert (where.split("/")[1] in ("tmp", "work"), uid != "0") == (True, True)
    assert (found["fails"]["stdout"], found["fails"]["status"]) == ("so far\n", "error")
    assert found["steals"]["stdout"].strip() in ("FileNotFoundError", "PermissionError")
    assert found["sleeps"]["status"] == "error"
    assert "ended by timeout" in found["sleeps"]["stderr"]
    assert found["files"] == [["out.txt", "A,B", "text/plain"]]
    assert found["refused"] == "invalid_input"


def test_without_adk_the_adapter_says_what_to_install() -> None:
    code = "import sys; sys.modules['google.adk'] = None\nimport bough.execution.adapters.adk"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "google-adk is not installed" in ran.stderr
