"""A data-science notebook, cell by cell: an agent runs code in the sandbox, with the packages of your environment."""

# %% An environment with a package of yours; in a project it is its own ".venv"
import os
import tempfile
import venv
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, CodeExecutionInput, Conversation, LocalSandboxCodeExecutor

folder = Path(tempfile.mkdtemp())
venv.create(folder / ".venv")
(site_packages,) = folder.glob(".venv/lib/python3*/site-packages")
(site_packages / "shop.py").write_text("def parse(line): name, eur = line.split(','); return name, float(eur)\n")
(folder / "sales.csv").write_text("tea,4.50\ncoffee,3.20\ntea,5.00\n")
executor = LocalSandboxCodeExecutor(packages=folder / ".venv", stateful=True)

# %% A tool that runs the model's code; variables last from call to call
CODE = """
from collections import Counter
from shop import parse
totals = Counter()
for line in open("sales.csv"):
    name, eur = parse(line.strip())
    totals[name] += eur
print(totals.most_common())
"""


def run_python(code: str) -> str:
    """Run Python code in the folder of the data. It has no network, and reads the environment's packages only."""
    request = CodeExecutionInput(code=code, workspace=folder, execution_id="notebook")
    result = executor.execute_sync(request)
    return result.text if result.ok else result.error_text


def analyse_offline(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    last = messages[-1].parts[-1]
    text = str(getattr(last, "content", ""))
    if last.part_kind == "tool-return":
        return ModelResponse([TextPart(text.strip())])
    return ModelResponse(
        [ToolCallPart("run_python", {"code": CODE if "sold" in text else "print(max(totals.values()))"})]
    )


analyst = AgentSpec(
    model=os.environ.get("MODEL") or FunctionModel(analyse_offline),
    system_prompt="You analyse the file sales.csv with Python code.",
    tools=[run_python],
)
conversation = Conversation(analyst, workspace=folder, store="memory:", title="Sales")

# %% Each cell asks; a notebook shows the last line as a table
conversation.send_message("What was sold most?")
conversation.run()

# %% Another question in a fork, which leaves this conversation as it is
print(conversation.state.output)
with conversation.fork(title="Maximum") as fork:
    fork.send_message("And the highest sum?")
    print(fork.run().output)
conversation.lineage()

# %%
conversation.close()
