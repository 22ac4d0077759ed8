"""What a program's agent does: whose address its model is asked at, and which model, tools and rules are in force."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.journeys.conftest import Person

from bough.testing import OpenAIServer

CREATE = """
import sys
from bough import AgentSpec, Conversation

spec = AgentSpec(name="house", model="openai:house-model", base_url=sys.argv[1], api_key="in-house-key")
with Conversation(spec) as conversation:
    conversation.send_message("the confidential question")
    print(conversation.run().output, conversation.id)
"""

CONTINUE = """
import sys
from bough import AgentSpec, Conversation

spec = AgentSpec(name="house", model="openai:house-model", base_url=sys.argv[1], api_key="in-house-key")
with Conversation.open(sys.argv[2], agent=spec) as conversation:
    conversation.send_message("and once more")
    print(conversation.run().output)
    print("quarantined", conversation.state.quarantined)
"""

CONTINUE_AS_RECORDED = """
import sys
from bough import Conversation
from bough.errors import BoughError

conversation = Conversation.open(sys.argv[1])
conversation.send_message("and once more")
for attempt in (conversation.run, lambda: conversation.ask("what?"), lambda: conversation.fork().run()):
    try:
        print("sent", attempt())
    except BoughError as error:
        print(error.code, error.message, error.hint)
conversation.adopt()
print(conversation.run().output)
conversation.close()
"""


def test_an_imported_conversation_is_continued_at_the_address_that_the_program_gives(
    new_person: Callable[[], Person], openai_server: Callable[..., OpenAIServer]
) -> None:
    house, public = openai_server("first", "second"), openai_server("sent to somebody else")
    sender, receiver = new_person(), new_person()
    conversation = sender.python(CREATE, house.url).stdout.split()[-1]
    bundle = receiver.folder / "log.bundle"
    sender.bough("conv", "export", conversation, "--output", bundle)
    receiver.environment |= {"OPENAI_API_KEY": "public-key", "OPENAI_BASE_URL": public.url}
    receiver.bough("conv", "import", bundle, "--accept-unknown")
    output = receiver.python(CONTINUE, house.url, conversation).stdout
    assert output.splitlines() == ["second", "quarantined True"]
    assert [request.headers["authorization"] for request in house.received] == ["Bearer in-house-key"] * 2
    assert public.received == []


def test_an_imported_conversation_is_not_sent_to_another_provider_before_it_is_adopted(
    new_person: Callable[[], Person], openai_server: Callable[..., OpenAIServer]
) -> None:
    house, public = openai_server("first", "second"), openai_server(*["sent to somebody else"] * 4)
    sender, receiver = new_person(), new_person()
    conversation = sender.python(CREATE, house.url).stdout.split()[-1]
    bundle = receiver.folder / "log.bundle"
    sender.bough("conv", "export", conversation, "--output", bundle)
    receiver.environment |= {"OPENAI_API_KEY": "public-key", "OPENAI_BASE_URL": public.url}
    receiver.bough("conv", "import", bundle, "--accept-unknown")
    *refused, answer = receiver.python(CONTINUE_AS_RECORDED, conversation).stdout.splitlines()
    assert public.received == []
    assert len(refused) == 3
    assert all(line.startswith("permission_denied") and "adopt" in line and house.url in line for line in refused)
    assert answer == "second", "once adopted, it is asked where it was"


COUNT_CLIENTS = """
import ssl, sys
from bough import AgentSpec, Conversation

contexts = set()
load = ssl.SSLContext.load_verify_locations

def record(context, *args, **options):
    contexts.add(context)
    return load(context, *args, **options)

ssl.SSLContext.load_verify_locations = record
spec = AgentSpec(model="openai:test", base_url=sys.argv[1], api_key="k")
first = Conversation(spec)
print(len(contexts))
first.send_message("one")
first.run()
first.send_message("two")
first.run()
for other in (Conversation(spec), first.fork()):
    other.send_message("three")
    other.run()
    other.close()
first.close()
print(len(contexts))
"""


def test_conversations_and_forks_of_one_model_share_its_client(
    person: Person, openai_server: Callable[..., OpenAIServer]
) -> None:
    server = openai_server("1", "2", "3", "4")
    assert person.python(COUNT_CLIENTS, server.url).stdout.split() == ["0", "1"]


@pytest.mark.slow
def test_a_run_says_which_server_of_its_agent_is_missing(person: Person) -> None:
    (person.home / ".bough").mkdir()
    (person.home / ".bough" / "config.yaml").write_text(
        "mcp_servers: {tables: {url: 'http://127.0.0.1:9/mcp'}}\n"
        "a2a: {clients: {expert: {url: 'http://127.0.0.1:9'}}}\n"
        "agents: {a: {model: offline, mcp_servers: [tables], a2a_clients: [expert]}}\n"
    )
    result = person.bough("run", "--agent", "a", "hello")
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert [name in line for name, line in zip(("'tables'", "agent expert"), warnings, strict=True)] == [True, True]
