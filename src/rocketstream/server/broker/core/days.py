"""The counts up to the last midnight and up to the one before.

Pure: days and counts come in. Upstream: BrokerStats (msgPutTotalTodayMorning of code 28).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from rocketstream.protocol import fastjson


@dataclass(frozen=True, slots=True)
class Mornings:
    """The counts at the last two midnights."""

    today: int = 0
    yesterday: int = 0


@dataclass(frozen=True, slots=True)
class DayCounts:
    """Puts and gets since counting began; kept over restarts.

    Attributes:
        since_ms: when counting began, ms since 1970; earlier counts are unknown.
        day: the local day the mornings belong to, as a proleptic ordinal.
        puts: messages stored since counting began.
        gets: messages consumers were given since then.
    """

    since_ms: int
    day: int
    puts: int = 0
    gets: int = 0
    put_mornings: Mornings = Mornings()
    get_mornings: Mornings = Mornings()

    def counted(self, day: int, puts: int, gets: int) -> DayCounts:
        """Return the counts with ``puts`` and ``gets`` added on ``day``, or on a later last day.

        The added counts belong to the new day: this is called every second.
        """
        new = self
        if day > self.day:
            # The days in between passed while the broker was stopped: nothing was counted.
            is_next = day == self.day + 1
            new = replace(
                self,
                day=day,
                put_mornings=_passed(self.put_mornings, self.puts, is_next),
                get_mornings=_passed(self.get_mornings, self.gets, is_next),
            )
        if puts or gets:
            new = replace(new, puts=new.puts + puts, gets=new.gets + gets)
        return new

    def encode(self, *, pretty: bool = False) -> bytes:
        """Return the text of its file."""
        return json.dumps(asdict(self), indent="\t" if pretty else None).encode()

    @classmethod
    def decode(cls, text: str | bytes) -> DayCounts:
        """Read the text of its file.

        Raises:
            ValueError, TypeError, KeyError, RemoteProtocolError: the text has another form.
        """
        kept = fastjson.loads(text)
        read = cls(
            **{name: kept[name] for name in ("since_ms", "day", "puts", "gets")},
            put_mornings=Mornings(**kept["put_mornings"]),
            get_mornings=Mornings(**kept["get_mornings"]),
        )
        mornings = (*asdict(read.put_mornings).values(), *asdict(read.get_mornings).values())
        for each in (read.since_ms, read.day, read.puts, read.gets, *mornings):
            if type(each) is not int or each < 0:
                raise ValueError(f"{each!r:.200} is not a count")
        return read


def _passed(mornings: Mornings, total: int, is_next: bool) -> Mornings:
    return Mornings(total, mornings.today if is_next else total)
