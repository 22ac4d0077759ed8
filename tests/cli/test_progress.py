"""How far a long command is: a line now and then on stderr, and none for programs or for what is done at once."""

from __future__ import annotations

import io

from bough.cli.progress import CountedFile, Progress
from bough.cli.render.json import JsonRenderer
from bough.cli.render.plain import PlainRenderer


def test_it_is_told_where_it_takes_long_and_not_to_programs() -> None:
    out, err = io.StringIO(), io.StringIO()
    always = Progress(PlainRenderer(out, err), "events", interval_seconds=0)
    always(1, 3)
    always(2)
    assert (out.getvalue(), err.getvalue()) == ("", "1 of 3 events\n2 events\n")
    Progress(JsonRenderer(out), "events", interval_seconds=0)(1, 3)
    Progress(PlainRenderer(out, err), "events", interval_seconds=3600)(1, 3)
    assert (out.getvalue(), err.getvalue()) == ("", "1 of 3 events\n2 events\n")


def test_lines_are_counted_as_they_pass() -> None:
    err, file = io.StringIO(), io.BytesIO()
    progress = Progress(PlainRenderer(io.StringIO(), err), "events", interval_seconds=0)
    written = CountedFile(file, progress, 1)
    assert [written.write(b"one\n"), written.write(b"two\n")] == [4, 4]
    file.seek(0)
    read = CountedFile(file, progress)
    assert [read.readline(), read.readline(100)] == [b"one\n", b"two\n"]
    assert err.getvalue() == "1 of 1 events\n1 of 1 events\n1 events\n2 events\n"
