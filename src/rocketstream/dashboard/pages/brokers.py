"""The brokers: where they are, their versions, and how much they handle and hold.

Law: the page asks no broker: it shows the last sweep, and a fact a broker did not report as
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from rocketstream.admin.state import BrokerState
from rocketstream.dashboard.site import Ask, get


@dataclass(frozen=True, slots=True)
class Shown:
    """One broker and the facts operators look for first."""

    state: BrokerState

    @property
    def put_tps(self) -> float | None:
        """Messages a second the broker stored, over ten seconds."""
        return first_number(self.state.facts, "putTps")

    @property
    def get_tps(self) -> float | None:
        """Messages a second the broker gave to consumers, over ten seconds."""
        facts = self.state.facts
        given = first_number(facts, "getTransferedTps")
        return given if given is not None else first_number(facts, "getTransferredTps")

    @property
    def disk(self) -> float | None:
        """How full the commit log's disk is, from 0 to 1; None where that is not reported."""
        ratio = first_number(self.state.facts, "commitLogDiskRatio")
        return ratio if ratio is not None and ratio >= 0 else None

    @property
    def began_ms(self) -> int | None:
        """Since when the broker runs, ms since 1970."""
        found = first_number(self.state.facts, "bootTimestamp")
        return None if found is None else int(found)

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest message it keeps was stored."""
        found = first_number(self.state.facts, "earliestMessageTimeStamp")
        return int(found) if found is not None and found > 0 else None


def first_number(facts: Mapping[str, str], name: str) -> float | None:
    """Return the first number of a fact such as ``12.5 13.0 9.1``; None where there is none."""
    words = facts.get(name, "").split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


async def page(ask: Ask) -> Response:
    """Return the page, or its live part."""
    state = ask.update().state
    brokers = [Shown(broker) for broker in (state.brokers if state else ())]
    template = "brokers_live.html" if ask.is_part else "brokers.html"
    return ask.show(template, title="Brokers", brokers=brokers)


ROUTES: Final = (get("/brokers", page),)
