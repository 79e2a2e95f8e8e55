"""The overviews: the groups of a cluster, the most urgent first; clusters, brokers and producers.

Law: all but the producers are those of the last sweep. A fact that a broker did not report is shown
as unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from rocketstream.admin.state import URGENCY, GroupState, GroupVerdict, Verdict, counted, figures
from rocketstream.dashboard.site import Ask, get, tried
from rocketstream.watch import Update


@dataclass(frozen=True, slots=True)
class Row:
    """One group of the overview."""

    state: GroupState
    verdict: GroupVerdict


@dataclass(frozen=True, slots=True)
class View:
    """The contents of the overview, after filter and order."""

    rows: list[Row]
    counts: dict[Verdict, int]
    query: str
    verdict: str
    order: str


_LOW: Final = -1.0
PRODUCERS_KEPT_MS: Final = 4_000
TOPICS_MAX: Final = 500


def _known(value: float | None) -> float:
    return _LOW if value is None else float(value)


ORDERS: Final[dict[str, Callable[[Row], tuple[float | str, ...]]]] = {
    "verdict": lambda row: (
        URGENCY.index(row.verdict.verdict),
        -_known(row.state.time_lag_ms),
        -_known(row.state.lag),
    ),
    "group": lambda row: (row.state.group,),
    "lag": lambda row: (-_known(row.state.lag),),
    "age": lambda row: (-_known(row.state.time_lag_ms),),
    "in": lambda row: (-_known(row.verdict.arrival_rate),),
    "out": lambda row: (-_known(row.verdict.consume_rate),),
    "letters": lambda row: (-_known(row.state.dead_letters),),
}


def view(update: Update, query: str = "", verdict: str = "", order: str = "verdict") -> View:
    """Return the contents of the overview for a sweep."""
    rows = [Row(state, update.verdict_of(name)) for name, state in update.groups.items()]
    counts = counted(row.verdict for row in rows)
    words = query.casefold().split()
    kept = [
        row
        for row in rows
        if all(word in row.state.group.casefold() for word in words)
        and (not verdict or row.verdict.verdict.value == verdict)
    ]
    order = order if order in ORDERS else "verdict"
    kept.sort(key=lambda row: row.state.group)
    kept.sort(key=ORDERS[order])
    return View(kept, counts, query, verdict, order)


async def page(ask: Ask) -> Response:
    """Return the page of all groups, or its live part."""
    found = view(ask.update(), ask.value("q"), ask.value("verdict"), ask.value("order"))
    return ask.page("overview", view=found, sheet=ask.sheet(found.rows), title="Groups")


async def clusters(ask: Ask) -> Response:
    """Return the page of all clusters, or its live part."""
    updates = [(site, site.collector.update()) for site in ask.site.sites.values()]
    found = [(site, update, counted(update.verdicts.values())) for site, update in updates]
    return ask.page("clusters", clusters=found, title="Clusters")


async def brokers(ask: Ask) -> Response:
    """Return the page of all brokers, or its live part."""
    state = ask.update().state
    rows = [(broker, figures(broker.facts)) for broker in (state.brokers if state else ())]
    return ask.page("brokers", title="Brokers", brokers=rows)


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
    return ask.show(
        "producers.html", code, title="Producers", sheet=ask.sheet(found), problem=problem,
        group=group, topic=topic, topics=sorted(ask.update().topics)[:TOPICS_MAX],
        groups=len({row.group for row in found}),
    )  # fmt: skip


ROUTES: Final = (get("/", page), get("/brokers", brokers), get("/producers", producers))
