"""Contents as HTML: what they may become, and their bounds."""

from __future__ import annotations

import pytest

from bough.html.highlight import MAX_CODE_BYTES, highlight, highlight_lines
from bough.html.invisible import show_block, show_invisible, show_name
from bough.html.markup import (
    MAX_MARKDOWN_BYTES,
    code,
    csv_table,
    diff,
    is_safe_link,
    json_tree,
    markdown,
    records_table,
    table,
)


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "java\tscript:alert(1)", " javascript:x", "data:text/html,x", "vbscript:x", "file:///etc",
     "//evil.example", "/api", "x", "https://user:secret@bank.example", "https://user@bank.example"],
)  # fmt: skip
def test_other_addresses_than_web_and_mail_are_no_links(address: str) -> None:
    assert not is_safe_link(address)
    assert "<a " not in markdown(f"[x]({address})")


def test_a_link_tells_its_host_if_its_text_names_another() -> None:
    assert "[evil.example] www.bank.example" in markdown("[www.bank.example](https://evil.example/)")
    assert "[" not in markdown("[the bank](https://bank.example/)")
    assert 'rel="noopener noreferrer nofollow"' in markdown("<https://a.example>")


def test_images_are_links_and_html_is_text() -> None:
    html = markdown("![a chart](https://x.example/a.png) <img src=x> <b>bold</b>")
    assert "<img" not in html
    assert "<b>" not in html
    assert "image: a chart (x.example)" in html


def test_markdown_has_headings_below_those_of_the_page_and_tables_without_styles() -> None:
    html = markdown("# One\n\n###### Six\n\n|a|b|\n|-|-:|\n|1|2|\n")
    assert "<h4>One</h4>" in html
    assert "<h6>Six</h6>" in html
    assert '<td class="num">2</td>' in html
    assert "style" not in html


@pytest.mark.parametrize("text", ["x" * (MAX_MARKDOWN_BYTES + 1), "*a* " * 3000, "é" * (MAX_MARKDOWN_BYTES // 2 + 1)])
def test_a_text_beyond_the_limits_is_not_parsed(text: str) -> None:
    assert markdown(text).startswith("<pre>")


def test_deep_nesting_ends() -> None:
    html = markdown("> " * 500 + "deep")
    assert html.count("<blockquote>") <= 20


def test_invisible_characters_are_marks() -> None:
    assert show_invisible("a\x00\x7f\u202e\ud800b") == "a␀␡⟦202E⟧\ufffdb"
    assert show_invisible("a\tb\nc\u200d") == "a\tb\nc\u200d"
    assert str(show_name("a\u202eb")) == '<bdi>a<span title="U+202E RIGHT-TO-LEFT OVERRIDE">⟦202E⟧</span>b</bdi>'
    assert str(show_name("<b>")) == "<bdi>&lt;b&gt;</bdi>"
    assert len(show_name("x" * 1000)) < 250


def test_a_very_long_line_is_broken_with_a_mark() -> None:
    lines = show_block("x" * 1_000_000).split("\n")
    assert len(lines) == 500
    assert all(line.endswith("⏎") for line in lines[:-1])
    assert show_block("a\r\nb") == "a\nb"


def test_json_is_bounded() -> None:
    deep: object = "end"
    for _ in range(50):
        deep = {"in": deep}
    assert json_tree(deep).count("<dl>") == 5
    html = json_tree({str(number): number for number in range(2000)})
    assert html.count("<dt>") == 501
    assert "1500 more" in html
    assert "&lt;b&gt;" in json_tree({"<b>": "<b>"})


def test_a_diff_has_lines_around_each_change() -> None:
    old = "\n".join(map(str, range(40)))
    html = diff(old, old.replace("\n5\n", "\n<five>\n").replace("\n30\n", "\n"), "x.py")
    assert '<del data-n="6">5</del>' in html
    assert '<ins data-n="6">&lt;five&gt;</ins>' in html
    assert html.count("⋯") == 1
    assert ">20<" not in html
    assert diff("a\n" * 5000, "b\n" * 5000).count("data-n") <= 1001


def test_code_is_highlighted_within_its_limit_and_only_in_known_languages() -> None:
    assert '<span class="k">def</span>' in code("def f(): pass", "a.py")
    assert "<span" not in code("def f(): pass", 'py" onload="x')
    assert "<span" not in highlight("def f(): pass\n" * (MAX_CODE_BYTES // 10), "python")
    lines = highlight_lines('x = """a\nb"""\n<y>', "python")
    assert [str(line).count("<span") == str(line).count("</span") for line in lines] == [True] * 3
    assert "&lt;" in lines[2]


def test_tables_are_bounded_and_ragged_text_is_none() -> None:
    html = table([str(n) for n in range(30)], [list(range(30))] * 300, "T")
    assert (html.count("<tr>"), html.count("<th "), "100 more rows" in html) == (201, 20, True)
    assert csv_table("a,b\n1,2\n", "T") is not None
    assert csv_table("a,b\n1\n", "T") is None
    assert csv_table("one column\n1\n", "T") is None
    assert records_table([{"a": 1}, {"a": "<b>"}], "T") is not None
    assert records_table([{"a": 1}, {"b": 1}], "T") is None
    assert records_table([{"a": [1]}], "T") is None
    assert records_table([], "T") is None
