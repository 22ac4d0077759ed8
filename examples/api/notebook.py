# %% [markdown]
"""A notebook: cells beside the notebook's own event loop, an object that lives from cell to cell."""

# %%
import sys

from bough import AgentSpec, CodeExecutionInput, Conversation, LocalSandboxCodeExecutor

SALES = {"north": 120, "south": 80}


def sales_of(region: str) -> int:
    """Return the sales of a region."""
    return SALES[region]


analyst = AgentSpec(name="analyst", model="openai:gpt-5", tools=[sales_of])
conversation = Conversation(analyst, title="sales")

# %%
conversation.send_message("Which region sells more?")
result = conversation.run()  # the stop button of the notebook interrupts it, and the next cell may continue
print(result.output)

# %%
attempt = conversation.fork()  # try something, and drop it
attempt.send_message("What if the north had half of it?")
print(attempt.run().output)
attempt.lineage()  # a cell that ends with it shows the tree of forks; results and states are shown, too
attempt.close()

# %%
sandbox = LocalSandboxCodeExecutor(packages=sys.prefix)  # the packages of this kernel, usually ".venv"
print(sandbox.execute_sync(CodeExecutionInput(code="import pydantic; print(pydantic.__file__)")).text, end="")

# %%
for message in conversation.messages():
    print(message.kind, [part.part_kind for part in message.parts])
conversation.close()
