"""Secrets in the forms that programs print: none of them is left readable."""

from __future__ import annotations

import base64
import html
import random
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from types import FrameType

import pytest

from bough.guard import Masker

TOKEN = "sk-live \"9f'8&e7<d6>c5b4$a3/9281+70=6f5e4d3c2b1a0099887766554433"
_LINES = textwrap.fill(base64.b64encode(random.Random(1).randbytes(1200)).decode(), 64)
KEY = f"-----BEGIN PRIVATE KEY-----\n{_LINES}\n-----END PRIVATE KEY-----\n"
NOT_SECRET = ("-----BEGIN", "-----END", "<secret:", "before", "after")


def mime(text: str) -> str:
    return base64.encodebytes(text.encode()).decode()


@pytest.mark.parametrize(
    "write",
    [
        mime,
        lambda text: mime(text).replace("\n", "\r\n"),
        lambda text: mime(f"xxxxxxx{text}yyyyyyyy"),
        lambda text: "\n".join(textwrap.wrap(base64.b64encode(f"ab{text}".encode()).decode(), 64)),
        lambda text: base64.b32encode(text.encode()).decode(),
        lambda text: base64.b32encode(f"abc{text}de".encode()).decode().lower(),
        html.escape,
        lambda text: html.escape(text, quote=False),
        shlex.quote,
        lambda text: subprocess.run(["bash", "-c", 'printf %q "$0"', text], capture_output=True, text=True).stdout,
        repr,
        lambda text: repr(text.encode()),
    ],
)
def test_a_token_is_hidden_however_it_is_written(write: Callable[[str], str]) -> None:
    written = write(TOKEN)
    masker = Masker({"TOKEN": [TOKEN]})
    masked = masker.text(f"before {written} after")
    assert "<secret:TOKEN>" in masked
    readable = [written[start : start + 20] for start in range(len(written) - 19)]
    assert [piece for piece in readable if piece in masked] == []
    stream = masker.text_stream()
    assert "".join([*(stream.feed(char) for char in f"before {written} after"), stream.close()]) == masked


@pytest.mark.parametrize(
    "write",
    [
        lambda text: textwrap.indent(text, "    "),
        lambda text: "".join(f"{number:6}\t{line}\n" for number, line in enumerate(text.splitlines(), 1)),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
        mime,
    ],
)
def test_a_key_is_hidden_line_by_line(write: Callable[[str], str]) -> None:
    masked = Masker({"KEY": [KEY]}).text(write(KEY))
    left = [word for word in masked.split() if len(word) >= 16 and not word.startswith(NOT_SECRET)]
    assert left == []


@pytest.mark.parametrize("length", [3, 7, 12, 20, 48, 57, 90, 199])
@pytest.mark.parametrize("before", [0, 1, 2, 31])
def test_base64_is_hidden_wherever_its_lines_are_broken(length: int, before: int) -> None:
    secret = "".join(random.Random(length).choices("abcdefghijkl0123456789-_", k=length))
    masker = Masker({"TOKEN": [secret]})
    encoded = base64.b64encode(f"{'x' * before}{secret}yy".encode()).decode()
    readable = encoded[-(-before * 8 // 6) : (before + length) * 8 // 6]
    for width in (64, 76):
        for first in range(1, width + 1):
            lines = [encoded[:first], *textwrap.wrap(encoded[first:], width)]
            for end in ("\n", "\r\n"):
                text = end.join(lines)
                masked = masker.text(text)
                assert masked.count("<secret:TOKEN>") == 1
                assert masker.data(text.encode()) == masked.encode()
                assert readable[:4] not in masked or length < 12


def test_a_text_without_secrets_is_searched_without_making_every_form() -> None:
    calls: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_globals.get("__name__") == "bough.guard.masker":
            calls.append(frame.f_code.co_name)

    masker = Masker({"TOKEN": [TOKEN], "KEY": [KEY]})
    sys.setprofile(note)
    try:
        masker.text("an ordinary line\n" * 1000)
    finally:
        sys.setprofile(None)
    assert "_list_unbroken_forms" in calls
    assert "_wrap" not in calls
