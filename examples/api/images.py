"""Images and documents: from a file, from bytes, or by their address. The log keeps each once, by its digest."""

from pathlib import Path

from bough import Conversation
from bough.events import FilePart, ImagePart

red_dot = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)
report = Path("report.pdf")
report.write_bytes(b"%PDF-1.4\n% revenue: 12,000\n%%EOF\n")

with Conversation("openai:gpt-5") as conversation:
    conversation.send_message("What colour is this?", images=[red_dot])
    print(conversation.run().output)

    conversation.send_message("What was the revenue?", files=[report])
    print(conversation.run().output)

    conversation.send_message("Compare.", images=[ImagePart.of(red_dot, name="dot.png")], files=[FilePart.of(report)])
    print(conversation.run().output)
