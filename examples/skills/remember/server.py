"""An MCP server with one tool: it searches the conversations of the person who starts it, and changes nothing.

It runs outside the sandbox, because a sandbox does not reach the store.
"""

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from bough import AsyncConversation, ConversationFilter
from bough.errors import BoughError

server = MCPServer("memory")


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
async def recall(words: str, limit: int = 20) -> list[dict[str, str]]:
    """Find what was said in earlier conversations: words that must all occur, "a phrase", `word*`, `-word`."""
    # The conversation that asks is running, and its own question would be the newest hit.
    running = await AsyncConversation.list(filter=ConversationFilter(status="running"))
    asking = {record.id for record in running.items}
    try:
        page = await AsyncConversation.search(words, limit=100)
    except BoughError as error:
        # Only the text of a ToolError reaches the model, which can then correct its words.
        raise ToolError(f"{error.message}; {error.hint}") from error
    return [
        {
            "said": hit.snippet,
            "by": hit.who,
            "on": hit.when.date().isoformat(),
            "conversation": f"{hit.title or 'untitled'} ({hit.conversation})",
        }
        for hit in page.items
        if hit.conversation not in asking
    ][:limit]


server.run()
