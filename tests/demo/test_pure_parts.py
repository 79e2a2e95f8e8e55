"""The demo's data, totals, chosen failures and directories."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from demo import consume
from demo import place as place_module
from demo.errors import DemoError, Interrupts
from demo.flights import FLIGHTS, SCHEMA, queue_of, read_airlines, read_flights
from demo.job import wanted
from demo.ledger import Counts, Ledger
from demo.listener import FlightListener
from demo.member import MemberProcess
from demo.place import Place, PlaceError, fresh_place
from demo.screen import Screen
from demo.server import ServerProcess
from demo.totals import Outcomes, Totals, differences, from_rows, mismatches
from demo.trouble import RefusedError, cause_of, expected, gives_up, refuses
from demo.watch import GroupProgress
from rocketstream import MessageExt
from rocketstream.admin import Admin


def test_flights_become_json_with_tag_key_and_aircraft() -> None:
    first = next(iter(read_flights()))
    assert (first.origin, first.key, first.aircraft) == ("EWR", "UA1545-2013-01-01", "N14228")
    body = json.loads(first.body())
    assert body["id"] == 0
    assert body["dep_delay"] == 2
    assert list(body) == [column.split()[0] for column in SCHEMA.split(", ")]


def test_what_is_not_known_is_null_and_keeps_its_own_queue_key() -> None:
    cancelled = next(f for f in read_flights() if f.values["dep_delay"] is None)
    assert json.loads(cancelled.body())["dep_time"] is None
    nameless = next(f for f in read_flights() if f.values["tailnum"] is None)
    assert nameless.aircraft == nameless.key


def test_an_aircraft_always_goes_to_the_same_queue_and_all_queues_are_used() -> None:
    flights = list(itertools.islice(read_flights(), 2_000))
    queues = {f.aircraft: queue_of(f.aircraft, 8) for f in flights}
    assert all(queue_of(f.aircraft, 8) == queues[f.aircraft] for f in flights)
    assert set(queues.values()) == set(range(8))


def test_airlines_have_names() -> None:
    assert read_airlines()["UA"] == "United Air Lines Inc."


def test_totals_count_unknown_delays_apart() -> None:
    totals = Totals()
    totals.add("UA", 5, -3)
    totals.add("UA", None, None)
    entry = totals.carriers["UA"]
    assert (entry.flights, entry.dep_delay, entry.dep_known, entry.arr_delay) == (2, 5, 1, -3)


def test_sums_of_parts_equal_the_whole() -> None:
    whole, left, right = Totals(), Totals(), Totals()
    for number, (carrier, delay) in enumerate([("UA", 1), ("AA", 2), ("UA", None)]):
        whole.add(carrier, delay, delay)
        (left if number % 2 else right).add(carrier, delay, delay)
    assert differences(whole, left.plus(right)) == []


def test_one_lost_flight_is_a_difference_with_its_figures() -> None:
    whole, part = Totals(), Totals()
    whole.add("UA", 5, 7)
    assert differences(whole, part) == [
        "UA flights: 0 instead of 1 (-1)",
        "UA dep_delay: 0 instead of 5 (-5)",
        "UA dep_known: 0 instead of 1 (-1)",
        "UA arr_delay: 0 instead of 7 (-7)",
        "UA arr_known: 0 instead of 1 (-1)",
    ]


def test_table_rows_become_totals_with_sums_of_nothing_as_zero() -> None:
    row: dict[str, int | str | None] = {
        "carrier": "OO",
        "flights": 1,
        "dep_delay": None,
        "dep_known": 0,
        "arr_delay": None,
        "arr_known": 0,
    }
    whole = Totals()
    whole.add("OO", None, None)
    assert differences(whole, from_rows([row])) == []


def test_a_few_hundred_flights_are_refused_and_few_of_them_for_ever() -> None:
    refused, given_up = expected(FLIGHTS)
    assert (refused, given_up) == (337, 43)
    assert refuses(1_007, 0)
    assert not refuses(1_007, 1)
    assert refuses(8_007, 5)
    assert gives_up(8_007)
    assert not refuses(8, 0)


def message(flight_id: int, reconsume_times: int = 0, delay: int | None = 5) -> MessageExt:
    """What the listener looks at of a message."""
    flight = {
        "id": flight_id, "carrier": "UA", "dep_delay": delay, "arr_delay": delay, "origin": "JFK",
    }  # fmt: skip
    body = json.dumps(flight).encode()
    return cast("MessageExt", SimpleNamespace(body=body, reconsume_times=reconsume_times))


def test_a_refusal_has_a_cause_in_the_flight_itself() -> None:
    flight = {"dep_delay": 1, "arr_delay": 1, "origin": "JFK"}
    assert cause_of(flight) == "no gate free at JFK"
    assert cause_of({**flight, "arr_delay": None}) == "diverted: no arrival"
    assert cause_of({**flight, "arr_delay": None, "dep_delay": None}) == "cancelled: no departure"


def test_the_ledger_counts_a_flight_once_and_knows_what_was_refused_and_why(
    tmp_path: Path,
) -> None:
    listener, ledger = FlightListener(str(tmp_path)), Ledger(tmp_path)
    listener([message(6)])
    with pytest.raises(RefusedError, match="flight 1007: no gate free at JFK"):
        listener([message(1_007)])
    assert ledger.counts() == Counts(consumed=1, refused=1)
    listener([message(1_007, 1)])
    listener([message(6)])
    assert ledger.counts() == Counts(consumed=2, retried=1, refused=1, repeated=1)
    assert ledger.causes == {1_007: "no gate free at JFK"}
    assert ledger.by_carrier() == [("UA", 2, 10, 2)]


def test_the_ledger_waits_for_a_line_to_be_whole_and_reads_every_process(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    (tmp_path / "1.jsonl").write_text('[1,0,"UA",5,5,null]\n[2,0,"U')
    (tmp_path / "2.jsonl").write_text('[3,0,"AA",null,null,null]\n')
    assert ledger.counts().consumed == 2
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('A",1,1,null]\n')
    assert ledger.counts().consumed == 3
    assert ledger.by_carrier() == [("UA", 2, 6, 2), ("AA", 1, 0, 0)]


def test_the_listener_travels_and_notes_at_the_same_place(tmp_path: Path) -> None:
    copied = pickle.loads(pickle.dumps(FlightListener(str(tmp_path))))  # noqa: S301 - our own
    copied([message(1, delay=None)])
    assert Ledger(tmp_path).counts() == Counts(consumed=1)


def test_what_must_become_of_the_flights_is_known_beforehand() -> None:
    assert wanted(FLIGHTS) == Outcomes(first=336_439, retried=294, dead=43)
    assert wanted(FLIGHTS).flights == FLIGHTS


def test_every_total_and_outcome_that_differs_is_named() -> None:
    sent, less = Totals(), Totals()
    for totals, count in ((sent, 3), (less, 2)):
        for _ in range(count):
            totals.add("UA", None, None)
    right = Outcomes(first=1, retried=1, dead=1)
    found = {"pushed": sent, "landed": sent, "on Spark": sent}
    assert mismatches(sent, found, {"pushed": right, "on Spark": right}, right) == []
    wrong = dataclasses.replace(right, dead=0)
    assert mismatches(sent, found | {"landed": less}, {"on Spark": wrong}, right) == [
        "landed: UA flights: 2 instead of 3 (-1)",
        "on Spark, dead: 0 flights instead of 1",
    ]


def test_a_group_that_is_behind_or_unknown_is_a_difference() -> None:
    good = GroupProgress("table", consumed=9, lag=0, seconds=0.0, dead=0, error=None)
    assert good.differences(9, {"other": 1}) == []
    assert dataclasses.replace(good, lag=2).differences(9, {}) == ["table, lag: 2 instead of 0"]
    assert good.differences(9, {"table": 1}) == ["table, dead: 0 instead of 1"]
    untold = dataclasses.replace(good, consumed=None, error="broker-a is gone")
    assert untold.differences(9, {}) == [
        "table, consumed: None instead of 9",
        "table, error: broker-a is gone instead of None",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_no_figure_is_cropped_on_eighty_columns(width: int) -> None:
    screen = Screen()
    screen.console = Console(width=width, record=True, file=io.StringIO())
    totals = Totals()
    for number in range(16):
        totals.add(f"C{number}", 4_152_200, 2_257_174)
        totals.carriers[f"C{number}"].flights = 336_776
    outcomes = wanted(FLIGHTS)
    screen.outcomes({"push consumers": outcomes, "Spark listener": outcomes})
    causes = {"cancelled: no departure": 43}
    screen.causes({"%DLQ%flight-totals": causes, "%DLQ%flight-totals-spark": causes})
    screen.proof([("push consumers + dead letters", totals)], equal=True)
    screen.progress([GroupProgress("flight-totals-spark", FLIGHTS, FLIGHTS, 1e5, 43, None)])
    hours = dict.fromkeys(range(24), (100, 12.0))
    screen.delays(dict.fromkeys(("UA", "AA"), hours), {"UA": "United Air Lines Inc."})
    bars = screen.bars("msg")
    bars.add_task("on Spark", total=FLIGHTS, completed=FLIGHTS, note="423 refused")
    screen.console.print(bars)
    rows = [(f"C{number}", FLIGHTS, 1_000, 10) for number in range(16)]
    with screen.live(bars, lambda: rows):
        pass
    shown = screen.console.export_text()
    assert "…" not in shown
    assert max(map(len, map(str.rstrip, shown.splitlines()))) <= width
    assert shown.count("336,776") >= 16 + 2
    assert "66,435,200" in shown
    assert "423 refused" in shown


def test_a_run_gets_a_fresh_directory_and_dead_runs_are_removed(tmp_path: Path) -> None:
    dead = tmp_path / "run-old"
    (dead / "store").mkdir(parents=True)
    alive = tmp_path / "run-alive"
    alive.mkdir()
    (alive / "owner.pid").write_text(str(os.getppid()), "utf-8")
    mine = fresh_place(tmp_path, "20240501-120000")
    assert not dead.exists()
    assert alive.exists()
    assert mine.root.name == "run-20240501-120000"
    assert list(mine.root.iterdir()) == [mine.root / "owner.pid"]


def test_two_runs_in_one_second_do_not_share(tmp_path: Path) -> None:
    first = fresh_place(tmp_path, "x")
    (first.root / "owner.pid").write_text(str(os.getppid()), "utf-8")
    assert fresh_place(tmp_path, "x").root != first.root


def test_a_run_that_begins_at_the_same_moment_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may look at any moment: what it may remove is nobody's."""
    (tmp_path / "run-old").mkdir()
    remove, make = shutil.rmtree, Path.mkdir

    def removed_by_both(path: Path, **options: Any) -> None:
        remove(path)
        remove(path, **options)

    def looked_at(path: Path, *arguments: Any, **options: Any) -> None:
        make(path, *arguments, **options)
        assert all((run / "owner.pid").is_file() for run in tmp_path.glob("run-[!o]*"))

    monkeypatch.setattr(shutil, "rmtree", removed_by_both)
    monkeypatch.setattr(Path, "mkdir", looked_at)
    with pytest.raises(AssertionError):  # the look itself
        looked_at(tmp_path / "run-x")
    remove(tmp_path / "run-x")
    assert fresh_place(tmp_path, "1").root.name == "run-1"


def test_a_run_of_another_user_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run-theirs").mkdir()
    (tmp_path / "run-theirs/owner.pid").write_text("4711", "utf-8")

    def refused(process: int, number: int) -> None:
        raise PermissionError(process)

    monkeypatch.setattr(os, "kill", refused)
    fresh_place(tmp_path, "1")
    assert (tmp_path / "run-theirs").is_dir()


def test_a_full_disk_says_how_much_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_module, "BYTES_NEEDED", 1 << 60)
    with pytest.raises(PlaceError, match="GiB free"):
        fresh_place(tmp_path, "x")


def test_a_place_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory", "utf-8")
    with pytest.raises(PlaceError, match="--data DIR"):
        fresh_place(blocked / "demo-data", "x")


def test_a_micro_batch_that_is_under_way_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark starts many processes for the first one: on a busy machine nothing comes for long."""
    monkeypatch.setattr(consume, "_STALLED_S", -1.0)
    monkeypatch.setattr(consume, "_POLL_S", 0.0)
    ledger = SimpleNamespace(counts=lambda: Counts())
    is_working = iter([True, True, True, False])
    with pytest.raises(DemoError, match="nothing came for"):
        consume.wait_consumed(
            cast(Admin, None),
            {consume.SPARK_GROUP: cast(Ledger, ledger)},
            5,
            Interrupts(),
            lambda: next(is_working),
        )
    assert not list(is_working)


def test_ctrl_c_that_ended_the_broker_too_is_no_failure_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the terminal's own group for a moment, until it has a session of its own."""
    monkeypatch.setattr("demo.server.sys.executable", "true")  # ends at once and says nothing
    server = ServerProcess(Place(tmp_path))
    try:
        assert server._said.wait(10)
        interrupts = Interrupts()
        with pytest.raises(DemoError, match="the broker did not start"):
            server.wait_ready(interrupts)
        interrupts.stop.set()
        with pytest.raises(KeyboardInterrupt):
            server.wait_ready(interrupts)
    finally:
        server.close()


def test_a_member_that_does_not_start_is_said_and_ends_with_its_block(tmp_path: Path) -> None:
    """An address nobody can have: the process ends before it has joined its group."""
    place = fresh_place(tmp_path, "1")
    with (
        pytest.raises(DemoError, match="a push consumer did not start"),
        MemberProcess("no-address", place) as member,
    ):
        member.wait_ready(Interrupts())
    assert "no-address" in place.client_log.read_text("utf-8")
