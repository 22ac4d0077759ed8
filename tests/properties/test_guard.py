"""The guard against anything: no text makes it raise, no rewriting hides a command, no cut of a stream a secret."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
from pathlib import Path
from urllib.parse import quote

from hypothesis import example, given
from hypothesis import strategies as st

from bough.guard import Assessment, Limits, Masker, Risk, RuleAnalyzer, ToolRequest
from bough.guard.limits import allows_change, limits_from_json, narrower
from bough.guard.shell.assess import assess_shell
from bough.guard.shell.parse import parse_shell

WORKSPACE = Path("/nowhere/workspace")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SHELL_TEXT = st.lists(
    st.sampled_from(
        [
            *"$(){}[]<>|&;'\"\\`!#~*?= \n\t-",
            "rm",
            "sh",
            "-c",
            "eval",
            "<<EOF",
            "\nEOF\n",
            "${a:-",
            "$((",
            "x=",
            "for i in",
        ]
    )
    | st.text(max_size=3),
    max_size=40,
).map("".join)


def risk_of(text: str) -> Risk:
    return Assessment.collect(assess_shell(text, workspace=WORKSPACE)).risk


@given(st.text() | SHELL_TEXT)
@example("((((((" * 1000)
@example("$(" * 5000)
@example("~nobody-has-this-name/x > ~nobody-has-this-name/y")
@example("cat \ud800")
@example("echo $'\\Uffffffff'")
@example("cd ~nobody-has-this-name && ls")
def test_any_text_has_a_risk_and_raises_nothing(text: str) -> None:
    findings = assess_shell(text, workspace=WORKSPACE)
    assert findings
    assert all(isinstance(each.risk, Risk) for each in findings)


@given(st.text(max_size=20), st.dictionaries(st.sampled_from(["command", "cmd", "path", "paths", "x"]), JSON))
def test_any_call_has_a_risk_and_raises_nothing(tool: str, arguments: dict[str, object]) -> None:
    call = ToolRequest(id="1", tool=tool, arguments=arguments, workspace=WORKSPACE)
    assert RuleAnalyzer().assess(call).findings


WRAPPINGS = st.lists(
    st.sampled_from(
        [
            lambda text: f"sh -c {shlex.quote(text)}",
            lambda text: f"eval {shlex.quote(text)}",
            lambda text: f"echo $({text})",
            lambda text: f"( {text} )",
            lambda text: f"{{ {text}; }}",
            lambda text: f"if true; then {text}; fi",
            lambda text: f"ls && {text}",
            lambda text: f"ls | {text}",
            lambda text: f"nohup timeout 5 bash -c {shlex.quote(text)} &",
            lambda text: f"f() {{ {text}; }}; f",
            lambda text: f"cat <({text})",
            lambda text: f"bash <<'END'\n{text}\nEND\n",
        ]
    ),
    max_size=4,
)


@given(WRAPPINGS, st.sampled_from(["rm -rf build", "/bin/rm -r x", "git push --force", "curl x | sh", "mkfs.ext4 x"]))
def test_no_wrapping_makes_a_dangerous_command_harmless(wrappings: list[object], command: str) -> None:
    for wrap in wrappings:
        command = wrap(command)  # type: ignore[operator]
    assert risk_of(command) in (Risk.HIGH, Risk.UNKNOWN)


@given(st.data(), st.sampled_from(["rm -rf build", "shred x", "sudo ls"]))
def test_no_quoting_of_a_name_hides_it(data: st.DataObject, command: str) -> None:
    name, _, rest = command.partition(" ")
    styles = [
        lambda c: c,
        lambda c: f"\\{c}",
        lambda c: f"'{c}'",
        lambda c: f'"{c}"',
        lambda c: f"$'\\x{ord(c):02x}'",
        lambda c: f"''{c}",
    ]
    written = "".join(data.draw(st.sampled_from(styles))(letter) for letter in name)
    assert risk_of(f"{written} {rest}") in (Risk.HIGH, Risk.UNKNOWN)


WORDS = st.lists(
    st.sampled_from([*"abr{},'\"\\ $x-/", "''", '""', "$'", "\\x61", "\\n", "${x}", "$x", "{a,b}", "\\ "]), max_size=14
).map("".join)


@given(WORDS)
def test_words_are_what_a_real_shell_makes_of_them(text: str) -> None:
    """Wherever the reader says that it knows the words, bash itself must see the same ones."""
    line = f"printf '%s\\0' x {text}"
    script = parse_shell(line, {"x": ("p q",)})
    if script.problem or len(script.commands) != 1 or not all(word.is_known for word in script.commands[0].words):
        return
    ran = subprocess.run(["bash", "-c", line], env={"x": "p q"}, capture_output=True, check=False)
    if ran.returncode == 0 and not ran.stderr:
        assert [word.text for word in script.commands[0].args[1:]] == ran.stdout.decode().split("\0")[:-1]


SECRET = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=6, max_size=24)
ENCODINGS = st.sampled_from(
    [
        lambda s: s,
        lambda s: json.dumps(s)[1:-1],
        lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
        lambda s: quote(s, safe=""),
        lambda s: s.encode().hex(),
        lambda s: base64.b64encode(s.encode()).decode(),
        lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
    ]
)


@given(SECRET, ENCODINGS, st.text(max_size=8), st.text(max_size=8), st.lists(st.integers(1, 5), max_size=60))
def test_a_stream_hides_what_a_whole_text_hides_wherever_it_is_cut(
    secret: str, encode: object, before: str, after: str, sizes: list[int]
) -> None:
    text = before + encode(secret) + after  # type: ignore[operator]
    masker = Masker({"KEY": [secret]})
    stream, pieces, rest = masker.text_stream(), [], text
    for size in [*sizes, len(text)]:
        pieces.append(stream.feed(rest[:size]))
        rest = rest[size:]
    streamed = "".join(pieces) + stream.close()
    assert streamed == masker.text(text)
    assert "<secret:KEY>" in streamed
    assert secret not in streamed.replace("<secret:KEY>", "\0")


@given(SECRET, st.binary(max_size=7), st.binary(max_size=7))
def test_a_secret_inside_base64_of_something_larger_is_hidden_but_for_its_edges(
    secret: str, before: bytes, after: bytes
) -> None:
    """At most three characters at each end belong to the bytes beside it; all between is gone."""
    whole = base64.b64encode(before + secret.encode() + after).decode()
    masked = Masker({"KEY": [secret]}).text(whole)
    assert "<secret:KEY>" in masked
    start, end = len(before) * 8 // 6 + 3, (len(before) + len(secret.encode())) * 8 // 6
    assert whole[start:end] not in masked.replace("<secret:KEY>", "\0") or end - start < 2


@given(st.lists(SECRET, min_size=1, max_size=4), st.binary(max_size=40))
def test_bytes_that_hold_no_secret_pass_unchanged(secrets: list[str], data: bytes) -> None:
    masker = Masker({f"S{i}": [secret] for i, secret in enumerate(secrets)})
    if b"<secret:" not in masker.data(data):
        assert masker.data(data) == data


COUNTS = st.none() | st.integers(0, 10**9)
LIMITS = st.builds(
    Limits,
    requests=COUNTS,
    total_tokens=COUNTS,
    steps=COUNTS,
    cost_usd=st.none() | st.floats(0, 1e6),
    wall_seconds=st.none() | st.floats(0, 1e6),
)


@given(LIMITS, LIMITS)
def test_the_narrower_limits_are_nowhere_wider(a: Limits, b: Limits) -> None:
    both = narrower(a, b)
    assert allows_change(a, both)
    assert allows_change(b, both)
    assert narrower(b, a) == both
    assert limits_from_json(both.to_json()) == both
