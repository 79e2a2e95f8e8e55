"""Tables at any width: nothing a person would copy or compare is ever cut."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from rocketstream.cli import output
from rocketstream.cli.output import print_fields, print_table
from rocketstream.cli.tables import Column, Laid, fold, lay, shown, shown_json, width
from rocketstream.protocol.codes import version_name

WIDTHS = (40, 60, 80, 100, 120, 200)
LAG = (
    Column("Topic", keep=True),
    Column("Broker", keep=True, importance=4),
    Column("Queue", number=True),
    Column("Broker offset", number=True, importance=3),
    Column("Committed", number=True, importance=3),
    Column("Lag", number=True),
    Column("Time lag", number=True, importance=6),
    Column("Last consumed", keep=True, importance=2),
    Column("Owner", keep=True, importance=5),
)
MODEST = ("orders", "broker-a", "3", "1,074", "1,000", "74", "3 min 05 s", "2024-05-01 12:00:00")
HUGE = (
    "a-topic-with-a-name-as-long-as-the-longest-that-anybody-has-given-one-so-far-in-production",
    "broker-of-the-eastern-data-centre-0017",
    "1,023",
    "9,223,372,036,854,775,807",
    "9,223,372,036,854,775,806",
    "1,234,567,890,123",
    "1,234 d 4 h",
    "2024-05-01 12:00:00",
)
WIDE = ("订单主题一二三四五六七八九十", "经纪人", "7", "12", "5", "7", "850 ms", "-")
OWNERS = ("10.0.0.9@4242#778899", "192.168.100.200@1234567#12345678901234567", "客户端@1")
ROWS = [(*row, owner) for row, owner in zip((MODEST, HUGE, WIDE), OWNERS, strict=True)]


def text(laid: Laid) -> list[str]:
    return ["".join(cell.text for cell in line).rstrip() for line in laid.lines]


@pytest.mark.parametrize("room", WIDTHS)
@pytest.mark.parametrize(
    "rows", [[r] for r in ROWS] + [ROWS], ids=["modest", "huge", "wide", "all"]
)
def test_every_number_and_name_is_whole_or_its_column_is_said_to_be_left_out(
    room: int, rows: list[tuple[str, ...]]
) -> None:
    laid = lay(LAG, rows, room)
    lines = text(laid)
    words = set(
        re.split(r"\s{2,}|\n", "\n".join(re.sub(r"([A-Z][a-z ]+): ", "  ", x) for x in lines))
    )
    for row in rows:
        for column, cell in zip(LAG, row, strict=True):
            assert column.title in laid.left_out or cell in words, (column.title, cell, lines)


@pytest.mark.parametrize("room", WIDTHS)
def test_no_line_is_wider_than_the_terminal_unless_one_name_alone_is(room: int) -> None:
    for rows in ([ROWS[0]], [ROWS[2]], [ROWS[0], ROWS[2]]):
        assert max(width(line) for line in text(lay(LAG, rows, room))) <= room
    for line in text(lay(LAG, ROWS, room)):
        assert width(line) <= room or line.strip().count(": ") == 1 or room == 200


def test_columns_of_least_importance_go_first_and_the_most_important_stay() -> None:
    gone = [lay(LAG, [ROWS[0]], room).left_out for room in range(130, 35, -1)]
    assert gone[0] == ()
    dropped = dict.fromkeys(title for titles in gone for title in titles)
    assert gone[-1] == ()  # stacked: less than half of the columns would be left
    most = max(gone, key=len)
    assert set(most) == {"Last consumed", "Committed", "Broker offset", "Broker"}
    assert next(iter(dropped)) == "Last consumed"
    assert list(dropped)[-1] == "Broker"
    assert set(dropped) == set(most)


def test_rows_are_stacked_with_everything_where_the_important_columns_do_not_fit() -> None:
    laid = lay(LAG, [ROWS[0]], 24)
    lines = text(laid)
    assert laid.left_out == ()
    assert lines[0] == "Topic: orders"
    assert all(line.startswith("  ") for line in lines[1:])
    assert "  Owner: " + OWNERS[0] in lines
    assert any("Lag: 74" in line for line in lines)


def test_text_folds_between_words_before_a_column_is_left_out() -> None:
    columns = (Column("Group", keep=True), Column("Topics", importance=3))
    topics = ", ".join(f"topic-{n}" for n in range(12))
    laid = lay(columns, [("billing", topics)], 60)
    assert laid.left_out == ()
    lines = text(laid)
    assert len(lines) > 3
    assert " ".join(line[9:] for line in lines[2:]) == topics


def test_without_a_width_a_table_takes_what_it_needs() -> None:
    lines = text(lay(LAG, ROWS, None))
    assert len(lines) == 2 + len(ROWS)
    assert (
        len({width(line[: line.index(o)]) for o, line in zip(OWNERS, lines[2:], strict=True)}) == 1
    )


def test_a_table_without_rows_shows_its_headings() -> None:
    assert text(lay(LAG[:3], [], 80)) == ["Topic  Broker  Queue", "─────  ──────  ─────"]


HOSTILE = {
    "\x1b[2J\x1b]0;owned\x07": r"\x1b[2J\x1b]0;owned\x07",
    "a\nb\rc\td": r"a\nb\rc\td",
    "\x9b31mred": r"\x9b31mred",
    "abc\u202edef": r"abc\u202edef",
    "line\u2028break": r"line\u2028break",
    "half \ud800": r"half \ud800",
    "zero\u200bwidth": r"zero\u200bwidth",
    "orders\u3164": r"orders\u3164",
    "private \ue000": r"private \ue000",
}


@pytest.mark.parametrize("given", HOSTILE, ids=ascii)
def test_what_steers_a_terminal_is_shown_as_text(given: str) -> None:
    assert shown(given) == HOSTILE[given]
    assert text(lay((Column("Name"),), [(given,)], 80))[2] == HOSTILE[given]


def test_letters_of_any_script_and_families_of_emoji_stay() -> None:
    for name in ("订单", "naïve", "می‌خواهم", "👩‍👩‍👧", "ñ"):
        assert shown(name) == name
    assert (width("订单"), width("naïve"), width("e\u0301")) == (4, 5, 1)


def test_json_stays_json_and_steers_nothing() -> None:
    assert shown_json('{"a":"\x9b\u202e订"}') == '{"a":"\\u009b\\u202e订"}'


def test_fold_never_breaks_a_word() -> None:
    assert fold("one two three-and-more four", 8) == ["one two", "three-and-more", "four"]


def test_fold_breaks_a_word_where_it_may() -> None:
    assert fold("one abcdefgh 订单订", 4, within=True) == ["one", "abcd", "efgh", "订单", "订"]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Terminal]:
    def make(columns: int, **env: str) -> Terminal:
        out = Terminal()
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"COLUMNS": str(columns), **env}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", out)
        return out

    return make


def test_a_note_says_what_is_left_out_and_how_to_see_it(terminal: Callable[..., Terminal]) -> None:
    out = terminal(80, NO_COLOR="1")
    print_table(LAG, [ROWS[0]], footer="total lag 74")
    lines = out.getvalue().splitlines()
    assert "total lag 74" in lines
    assert "Last consumed" in " ".join(lines[-2:])
    assert "--wide or --json" in " ".join(lines[-2:])
    output.look.wide = True
    try:
        out = terminal(80, NO_COLOR="1")
        print_table(LAG, [ROWS[0]])
        assert "2024-05-01 12:00:00  10.0.0.9@4242#778899" in out.getvalue()
    finally:
        output.look.reset()


def test_colours_are_for_terminals_that_want_them(terminal: Callable[..., Terminal]) -> None:
    columns = (Column("Verdict", colour=lambda cell: "red" if cell == "STALLED" else None),)
    for env, expected in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        out = terminal(80, **env)
        print_table(columns, [("STALLED",), ("OK",)])
        assert ("\x1b[31mSTALLED\x1b[0m" in out.getvalue()) is expected
    piped = io.StringIO()
    with mock.patch.object(sys, "stdout", piped):
        print_table(columns, [("STALLED",)])
    assert "\x1b" not in piped.getvalue()


def test_a_terminal_without_line_drawing_gets_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, "ascii", errors="backslashreplace", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    print_table((Column("Topic"),), [("订",)])
    assert raw.getvalue().splitlines() == [b"Topic", b"-----", b"\\u8ba2"]


def test_fields_stand_below_each_other(terminal: Callable[..., Terminal]) -> None:
    out = terminal(40)
    print_fields([("Id", "x"), ("Broker", "one two three four five six seven eight")])
    assert out.getvalue().splitlines() == [
        "Id      x",
        "Broker  one two three four five six",
        "        seven eight",
    ]


def test_versions_have_names_and_unknown_ones_say_so() -> None:
    assert [version_name(n) for n in (407, 409, 513, 212)] == [
        "V4_9_7", "V4_9_8", "V5_5_0", "V4_0_0_SNAPSHOT",
    ]  # fmt: skip
    assert [version_name(n) for n in (0, 612, -1)] == [
        "unknown (0)",
        "unknown (612)",
        "unknown (-1)",
    ]


def test_the_width_of_a_terminal_nobody_tells_is_eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output.room() == 80
    with Path(os.devnull).open("w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        assert output.room() is None
