"""The brokers, and the producers connected to them.

A fact that a broker did not report is shown as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from rocketstream.dashboard.site import Ask, get, tried

PRODUCERS_KEPT_MS: Final = 4_000
TOPICS_MAX: Final = 500


FACTS: Final = {
    "in_s": ("putTps",),
    "out_s": ("getTransferedTps", "getTransferredTps"),
    "disk": ("commitLogDiskRatio",),
    "began_ms": ("bootTimestamp",),
    "oldest_ms": ("earliestMessageTimeStamp",),
}
"""The facts operators look for first, by the names that brokers of 4.x and 5.x give them."""


def figures(facts: Mapping[str, str]) -> dict[str, float | None]:
    """Return the facts of the table; None where a broker tells none, or less than none."""
    found: dict[str, float | None] = {}
    for name, told in FACTS.items():
        values = [value for each in told if (value := first_number(facts, each)) is not None]
        found[name] = values[0] if values and values[0] >= 0 else None
    return found


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
    brokers = [(broker, figures(broker.facts)) for broker in (state.brokers if state else ())]
    return ask.page("brokers", title="Brokers", brokers=brokers)


async def producers(ask: Ask) -> Response:
    """Return the page of connected producers: all, or those of one group that send to a topic.

    Brokers before 4.9.4 tell only the latter.
    """
    group, topic = ask.value("group"), ask.value("topic")
    if group and topic:
        asked = ask.site.desk.ask(lambda admin: admin.producers.connections(group, topic))
    else:
        asked = ask.site.desk.ask(
            lambda admin: admin.producers.all(), key=("producers",), keep_ms=PRODUCERS_KEPT_MS
        )
    rows, problem, code = await tried(asked)
    found = [row for row in rows or () if group.casefold() in row.group.casefold()]
    state = ask.update().state
    return ask.show(
        "producers.html", code, title="Producers", sheet=ask.sheet(found), problem=problem,
        group=group, topic=topic, topics=sorted(state.topics)[:TOPICS_MAX] if state else [],
        groups=len({row.group for row in found}),
    )  # fmt: skip


ROUTES: Final = (get("/brokers", page), get("/producers", producers))
