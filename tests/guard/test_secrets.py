"""Secrets: read when used, given only where declared, and found nowhere else."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from bough.errors import InvalidInput, NotFound, Unavailable
from bough.guard import EnvSecret, FileSecret, Masker, Secrets, secrets_from_json

VALUE = 'p@ss "w/ord" ä+1'


def never() -> str:
    raise AssertionError("read before it was used")


def test_making_listing_and_describing_read_nothing() -> None:
    secrets = Secrets({"B": never, "A": never})
    assert secrets.names == ("A", "B")
    assert repr(secrets) == "Secrets(A, B)"
    assert "function" in secrets.to_json()["A"]


def test_values_come_from_the_environment_files_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "from-environment")
    (tmp_path / "key").write_text("from-file\n")
    secrets = Secrets({"E": EnvSecret("OUTER"), "F": FileSecret(tmp_path / "key"), "C": lambda: "from-function"})
    assert secrets.values() == {"E": "from-environment", "F": "from-file", "C": "from-function"}
    monkeypatch.setenv("OUTER", "rotated-value")
    assert secrets.value("E") == "rotated-value", "read at each use"


def test_a_script_gets_what_it_declares_and_nothing_else() -> None:
    secrets = Secrets({"A": lambda: "value-of-a", "B": never})
    assert secrets.for_script(["A", "A"]) == {"A": "value-of-a"}
    assert secrets.for_script([]) == {}
    with pytest.raises(NotFound, match="'C'"):
        secrets.for_script(["A", "C"])


def test_trouble_is_told_without_the_value(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "huge").write_text("x" * 100_000)
    (tmp_path / "empty").write_text("")

    def leaks() -> str:
        raise RuntimeError(VALUE)

    providers: list[Any] = [EnvSecret("NOT_SET_ANYWHERE"), leaks, lambda: 42, lambda: None]
    providers += [FileSecret(tmp_path / name) for name in ("missing", "binary", "huge", "empty")]
    for provider in providers:
        with pytest.raises(Unavailable) as caught:
            Secrets({"KEY": provider}).value("KEY")
        assert VALUE not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_value_too_short_to_mask_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        Secrets({"KEY": lambda: "12345"}).value("KEY")
    assert "12345" not in str(caught.value) + caught.value.hint
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", "a-b", "1A", "A B", "A\n"])
def test_a_name_that_no_variable_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        Secrets({name: never})


def test_secrets_and_maskers_are_not_pickled_or_shown() -> None:
    secrets = Secrets({"KEY": lambda: VALUE})
    secrets.values()
    masker = secrets.masker()
    for thing in (secrets, masker):
        assert VALUE not in repr(thing)
        with pytest.raises(TypeError):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.deepcopy(thing)


def test_references_come_back_and_values_are_not_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", VALUE)
    secrets = Secrets({"E": EnvSecret("OUTER"), "F": FileSecret(tmp_path / "key")})
    described = json.dumps(secrets.to_json())
    assert VALUE not in described
    assert secrets_from_json(json.loads(described)).to_json() == secrets.to_json()
    for wrong in (None, 3, {"A": {}}, {"A": "value"}, {"A": {"function": "f"}}, {"A": {"env": 3}}):
        with pytest.raises(InvalidInput):
            secrets_from_json(wrong)


def test_a_masker_hides_earlier_values_and_skips_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "first-value")
    secrets = Secrets({"E": EnvSecret("OUTER"), "GONE": EnvSecret("NOT_SET_ANYWHERE")})
    secrets.value("E")
    monkeypatch.setenv("OUTER", "second-value")
    masked = secrets.masker().text("first-value second-value")
    assert masked == "<secret:E> <secret:E>"
    assert secrets.narrow([]).masker().text("first-value") == "<secret:E>", "a fork without it hides it all the same"


FORMS = [
    VALUE,
    json.dumps(VALUE)[1:-1],
    json.dumps(VALUE, ensure_ascii=False)[1:-1],
    json.dumps(json.dumps(VALUE)[1:-1])[1:-1],
    quote(VALUE),
    quote(VALUE, safe=""),
    quote(VALUE, safe="").lower(),
    VALUE.encode().hex(),
    VALUE.encode().hex().upper(),
    base64.b64encode(VALUE.encode()).decode(),
    base64.urlsafe_b64encode(VALUE.encode()).decode().rstrip("="),
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_hidden_in_text_bytes_and_json(form: str) -> None:
    masker = Masker({"KEY": [VALUE]})
    assert masker.text(f"a {form} b") == "a <secret:KEY> b"
    assert masker.data(b"\xff\x00 " + form.encode() + b" \xfe") == b"\xff\x00 <secret:KEY> \xfe"
    value = {"k": [form, {form: 1}], "n": None, "t": True}
    assert masker.json(value) == {"k": ["<secret:KEY>", {"<secret:KEY>": 1}], "n": None, "t": True}


def test_base64_of_a_header_around_the_value_is_hidden() -> None:
    for user in ("a", "ab", "abc"):
        header = base64.b64encode(f"{user}:{VALUE}".encode()).decode()
        assert "<secret:KEY>" in Masker({"KEY": [VALUE]}).text(f"Authorization: Basic {header}")


def test_a_number_that_is_a_secret_is_hidden() -> None:
    masker = Masker({"PIN": ["12345678"]})
    assert masker.json({"pin": 12345678, "other": 1234567, "yes": True, "half": 0.5}) == {
        "pin": "<secret:PIN>",
        "other": 1234567,
        "yes": True,
        "half": 0.5,
    }


def test_overlapping_secrets_leave_no_end_over() -> None:
    masker = Masker({"LONG": ["abcdefghij"], "SHORT": ["abcdef"], "TAIL": ["ghijklmn"]})
    assert masker.text("abcdefghij") == "<secret:LONG>"
    assert masker.text("abcdefghijklmn") == "<secret:LONG>", "what begins inside the one ends with the other"
    assert masker.text("abcdef ghijklmn") == "<secret:SHORT> <secret:TAIL>"


def test_a_stream_hides_a_value_cut_at_every_place() -> None:
    masker = Masker({"KEY": [VALUE], "OTHER": [VALUE + " and more"]})
    text = f"before {VALUE} and then {VALUE} and more."
    for cut in range(len(text)):
        stream = masker.text_stream()
        assert stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.close() == masker.text(text)
    data = masker.data_stream()
    assert b"".join([*(data.feed(bytes([byte])) for byte in text.encode()), data.close()]) == masker.data(text.encode())


def test_a_stream_holds_back_no_more_than_it_must() -> None:
    stream = Masker({"KEY": ["secret-value"]}).text_stream()
    assert stream.feed("nothing here") == "nothing here"
    assert stream.feed(" sec") == " "
    assert stream.feed("ond") == "second"
    assert stream.close() == ""


def test_without_secrets_nothing_changes() -> None:
    masker = Masker()
    assert masker.text("x") == "x"
    assert masker.text_stream().feed("x") == "x"
    assert masker.data(b"\xff") == b"\xff"
