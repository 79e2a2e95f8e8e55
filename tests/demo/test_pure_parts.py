"""The demo's data, totals, chosen failures and directories."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from demo import place as place_module
from demo.flights import FLIGHTS, SCHEMA, queue_of, read_airlines, read_flights
from demo.place import PlaceError, fresh_place
from demo.totals import Totals, differences, from_rows
from demo.trouble import expected, gives_up, refuses


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
