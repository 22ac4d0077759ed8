"""One prompt, one answer: `bough.run` keeps the log, so that the answer can be looked at or continued later."""

import bough
from bough import Conversation
from bough.errors import BoughError

try:
    result = bough.run("Summarize README.md in one sentence.", agent="openai:gpt-5", workspace=".")
except BoughError as error:
    raise SystemExit(f"{error.code}: {error.message}\n{error.hint}") from error

print(result.output)

with Conversation.open(result.conversation) as conversation:
    print("title:", conversation.title)
    print("kinds:", *dict.fromkeys(stored.kind for stored in conversation.events))
