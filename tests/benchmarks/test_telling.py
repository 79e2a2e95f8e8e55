"""How a program is told its next round, and how figures become rows of a table."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as entry
from benchmarks import work
from benchmarks.__main__ import KEPT, pages
from benchmarks.harness import Figure
from benchmarks.jobs import rounds_of
from benchmarks.markdown import BEGIN, END, bare, merged, replaced, rows, short_rows
from benchmarks.plots import Panel, Point, drawn
from benchmarks.rounds import Rounds
from benchmarks.sides import Side, as_line, machine_s, others_share, processor_s
from benchmarks.suites import SHORT, SHOWN, SUITES
from tests.plugins.waiting import wait_until
from tests.tidy.source import ROOT

STEADY = Rounds((1.0, *(10.0,) * 6))


def test_each_line_of_input_is_a_round_over_the_options_given_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = as_line({"group": "g_1", "warm_up": 5}) + "\n" + as_line({"count": 3})
    monkeypatch.setattr(sys, "argv", ["work", "drain", "--told", "--count", "7"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(told))
    parser = work.arguments()
    parser.add_argument("job")
    parser.add_argument("--told", action="store_true")
    found = list(rounds_of(parser, parser.parse_args()))
    assert [(each.group, each.count, each.warm_up) for each in found] == [
        ("g_1", 7, 5),
        ("bench-group", 7, 0),
        ("bench-group", 3, 0),
    ]


def test_a_word_with_a_space_is_refused_because_a_line_is_cut_there() -> None:
    with pytest.raises(ValueError, match="white space"):
        as_line({"topic": "two words"})


class Script:
    """A told program that answers what it was given."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.told: list[dict[str, object]] = []

    def round(self, **words: object) -> dict[str, Any]:
        self.told.append(words)
        return self.answers.pop(0)


def test_a_side_returns_one_quantity_and_keeps_the_others_of_the_same_rounds() -> None:
    numbers = iter(range(9))
    answers = [
        {"rate": 1.0, "cpu_us": 90.0},
        *({"rate": 10.0, "cpu_us": 20.0 + n} for n in range(6)),
    ]
    script = Script(*answers)
    side = Side(script, words=lambda: {"group": f"g{next(numbers)}"})
    rounds = Rounds(tuple(side() for _ in range(7)))
    assert rounds.median == 10.0
    assert side.median("cpu_us", rounds) == 22.5, "the cold round is in no median"
    assert side.median("p99_us", rounds) is None
    assert side.of("cpu_us", rounds).cold == 90.0
    assert script.told[:2] == [{"group": "g0"}, {"group": "g1"}], "a group of its own each"


def test_processor_time_of_this_process_grows_with_its_work() -> None:
    before = processor_s([os.getpid()])
    while processor_s([os.getpid()]) == before:
        sum(range(10_000))
    assert processor_s([os.getpid(), os.getpid()]) > processor_s([os.getpid()])


def test_others_had_of_the_machine_whatever_client_and_servers_had_not() -> None:
    assert others_share(busy_s=3.0, own_s=1.0, seconds=2.0, cores=2) == 0.5
    assert others_share(busy_s=1.0, own_s=1.02, seconds=1.0, cores=2) == 0.0, "ticks are coarse"
    before = machine_s()
    while machine_s() == before:
        sum(range(10_000))
    side = Side(Script({"count": 1, "cpu_us": 0.0}), key="count")
    side()
    assert side.said[0]["others"] >= 0


def test_a_server_that_is_not_asked_stands_still_and_goes_on_afterwards() -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )

    class Looking:
        def round(self, **_: object) -> dict[str, Any]:
            wait_until(lambda: state(other.pid) == "T", "the other to stand still")
            return {"rate": 1.0}

    with other:
        assert Side(Looking(), asleep=[other.pid])() == 1.0
        wait_until(lambda: state(other.pid) != "T", "the other to go on")
        with pytest.raises(RuntimeError, match="a round that fails"):
            Side(Failing(), asleep=[other.pid])()
        wait_until(lambda: state(other.pid) != "T", "the other to go on")


class Failing:
    """A told program that ends instead of answering."""

    def round(self, **_: object) -> dict[str, Any]:
        raise RuntimeError("a round that fails")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


def on(machine: str, line: dict[str, Any]) -> dict[str, Any]:
    facts = {**line["machine"], "name": machine}
    return {**line, "suite": line["benchmark"], "scale": 1.0, "machine": facts}


def test_rows_tell_ranges_ratios_processor_time_and_what_to_doubt() -> None:
    rising = Rounds(tuple(1_000.0 * 2**number for number in range(8)))
    notes = {"ours_cpu_us": 22.04, "peer_cpu_us": 80.0, "ours_server_us": 34.0}
    line = Figure("send", "msg/s", STEADY, "Java client", rising, notes).line()
    row = list(rows([on("A", line)]))[2]
    assert "| send | A | 10 msg/s (10–10) | 1 msg/s | Java client " in row
    assert "not steady after 8 rounds" in row
    assert "| not steady | 22 / 80; 34 | `send` |" in row


def test_a_row_without_peer_and_rounds_has_dashes() -> None:
    line = Figure("start", "s", [0.023]).line()
    assert list(rows([on("A", line)]))[2] == (
        "| start | A | 0.023 s (0.023–0.023) | – | – | – | – | – | `start` |\n"
    )


def test_the_short_table_has_the_ratio_of_each_machine_and_none_of_sides_that_were_not_steady() -> (
    None
):
    rising = Rounds(tuple(2.0**number for number in range(8)))
    notes = {"ours_cpu_us": 22.04, "peer_cpu_us": 80.0}
    lines = [
        on("B", Figure("send", "msg/s", STEADY, "Java", rising, notes).line()),
        on("A", Figure("send", "msg/s", STEADY, "Java", [20.0], notes).line()),
        on("A", Figure("send", "msg/s", rising, "Kafka", STEADY).line()),
        on("B", Figure("send", "msg/s", STEADY, "Kafka", STEADY, {"ours_others": 0.4}).line()),
        on("A", Figure("not wanted", "s", [1.0], "Java", [2.0]).line()),
        on("A", Figure("start", "s", [1.0], "Java", [2.0]).line()),
        on("A", Figure("alone", "s", [1.0]).line()),
    ]
    told = "".join(short_rows(lines, ["send", "start", "alone"])).splitlines()
    assert told[1:] == [
        "|---|---|---|---|",
        "| send, msg/s | Java | **0.5** | not steady |",
        "| send, msg/s | Kafka | not steady | machine busy |",
        "| start, s | Java | **0.5** | – |",
    ]


@pytest.mark.parametrize("who", ["README.md", "docs/performance.md"])
def test_the_tables_of_the_pages_are_written_from_the_figures_that_are_kept(who: str) -> None:
    lines = map(json.loads, KEPT.read_text(encoding="utf-8").splitlines())
    tables = {page.relative_to(ROOT).as_posix(): table for page, table in pages([*lines]).items()}
    page = (ROOT / who).read_text(encoding="utf-8")
    assert replaced(page, tables[who]) == page, (
        "python -m benchmarks SUITE --keep MACHINE writes it"
    )


def test_each_figure_of_the_short_table_is_kept_of_a_suite_that_make_bench_runs() -> None:
    lines = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    suites = {line["benchmark"]: line["suite"] for line in lines}
    assert {suites[name] for name in SHOWN if name in suites} <= set(SHORT)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0234, "0.0234"), (1.25, "1.25"), (431.4, "431"), (5_123, "5.12 k"), (168_900, "169 k")],
)
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert bare(value) == text


def test_a_suite_measured_again_replaces_its_figures_and_leaves_the_others() -> None:
    one, two, start, gone, drain, again, other = (
        {"suite": suite, "benchmark": name, "machine": {"name": machine}}
        for suite, name, machine in (
            ("send", "one", "A"), ("send", "two", "A"), ("start", "start", "A"), ("gone", "", "A"),
            ("drain", "drain", "A"), ("send", "two", "A"), ("send", "one", "B"),
        )
    )  # fmt: skip
    order = ["start", "send", "drain"]
    assert merged([one, two, start, gone], [drain, again], order) == [start, again, drain]
    found = merged([one, two, start], [other], order)
    assert found == [start, one, other, two], "another machine's stand beside them"


def test_no_suite_of_the_short_table_begins_when_the_half_hour_is_nearly_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "QUICK_BEGIN_S", -1)
    monkeypatch.setattr(entry, "squares_s", lambda: 0.3)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--results", str(tmp_path)])
    assert entry.main() == 0
    told = capsys.readouterr().err.splitlines()
    assert told == [f"  {name} left out: the half hour is over" for name in SHORT]


def test_a_table_goes_between_its_marks_and_nowhere_else() -> None:
    page = f"before\n{BEGIN}old\n{END}after\n"
    assert replaced(page, "new\n") == f"before\n{BEGIN}new\n{END}after\n"
    with pytest.raises(ValueError, match="has no lines <!-- figures: begin"):
        replaced("before\nafter\n", "new\n")


def test_the_page_has_the_marks_and_names_suites_that_there_are() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert replaced(page, "") != page
    told = re.findall(r"^python -m benchmarks ([a-z -]+?)(?: +--.*| +#.*)?$", page, re.MULTILINE)
    names = {name for line in told for name in line.split()}
    assert names
    assert names <= {"all", "table", *SUITES}


def test_a_page_of_plots_is_drawn_from_points(tmp_path: Path) -> None:
    points = [Point("queues", "sends", x, 10.0 * x, 20.0, 30.0) for x in (1, 10, 100)]
    panels = [Panel("queues", "queues", "msg/s"), Panel("topics", "topics without points", "")]
    panels.append(Panel("memory", "seconds", "MiB", over_time=True))
    points += [Point("memory", "poll_arrow", x, 50.0) for x in range(5)]
    texts = []
    for _ in range(2):
        drawn(points, panels, tmp_path / "page.svg", "How cost grows")
        texts.append((tmp_path / "page.svg").read_text(encoding="utf-8"))
    page = texts[0]
    assert texts[1] == page, "nothing but the points is in it"
    assert "sends" in page
    assert "without points" not in page
