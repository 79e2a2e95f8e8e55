"""The brokers, and the producers connected to them.

A fact that a broker did not report is shown as unknown.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from rocketstream.admin.state import figures
from rocketstream.dashboard.site import Ask, get, tried

PRODUCERS_KEPT_MS: Final = 4_000
TOPICS_MAX: Final = 500


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
