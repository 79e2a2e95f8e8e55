"""Topics: how many messages they hold and receive, and which groups consume them.

Law: asks no broker; it shows the results of sweeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from rocketstream import limits
from rocketstream.admin.state import (
    GroupState,
    GroupVerdict,
    TopicQueue,
    TopicState,
    longest_of,
    sum_of,
)
from rocketstream.dashboard.site import Ask, get, pick
from rocketstream.watch import Update
from rocketstream.watch.series import TopicRates

KINDS: Final = ("normal", "retry", "dead letter", "system", "all")


@dataclass(frozen=True, slots=True)
class Consumer:
    """One group that consumes a topic.

    Attributes:
        state: None for a group the last sweep did not find.
        lag: messages of this topic the group has not consumed; None when not known.
    """

    group: str
    state: GroupState | None
    verdict: GroupVerdict
    lag: int | None
    time_lag_ms: int | None


def consumers(update: Update, topic: TopicState) -> list[Consumer]:
    """Return the groups that consume a topic, the one farthest behind first."""
    groups = update.groups
    mine = {
        name for name, state in groups.items() if any(q.topic == topic.topic for q in state.queues)
    }
    found = []
    for name in sorted(mine | set(topic.consumers or ())):
        state = groups.get(name)
        queues = [q for q in state.queues if q.topic == topic.topic] if state else []
        found.append(
            Consumer(
                group=name,
                state=state,
                verdict=update.verdict_of(name),
                lag=sum_of(queues, [q.lag for q in queues]),
                time_lag_ms=longest_of(queues, state.taken_ms) if state else None,
            )
        )
    return sorted(found, key=lambda each: -(each.lag or 0))


def shown_queues(
    topic: TopicState, last: TopicState | None, *, is_outage: bool
) -> list[tuple[TopicQueue, bool]]:
    """Return a topic's queues, and for each whether its figures are those of ``last``."""
    told = {} if is_outage else {queue.key: queue for queue in topic.queues}
    old = {} if last is None else {queue.key: queue for queue in last.queues}
    return [(queue, key not in told) for key, queue in sorted((old | told).items())]


async def list_page(ask: Ask) -> Response:
    """Return the page of all topics of a kind."""
    update = ask.update()
    kind = ask.value("kind", "normal")
    kind = kind if kind in KINDS else "normal"
    words = ask.value("q").casefold().split()
    kept = [
        topic
        for name, topic in sorted(update.topics.items())
        if kind in ("all", topic.kind) and all(word in name.casefold() for word in words)
    ]
    rates = ask.site.rates
    if ask.value("order") == "in":
        kept.sort(key=lambda topic: -(rates.rate(topic.topic) or 0))
    elif ask.value("order") == "messages":
        kept.sort(key=lambda topic: -(topic.messages or 0))
    return ask.page(
        "topics", title="Topics", sheet=ask.sheet(kept), rates=rates, kind=kind, kinds=KINDS,
        query=ask.value("q"), order=ask.value("order"),
    )  # fmt: skip


async def page(ask: Ask) -> Response:
    """Return the page of one topic."""
    name = ask.need("name")
    update = ask.update()
    topic: TopicState = pick(update, "topic", name)
    last = update.last_topics.get(name)
    queues = shown_queues(topic, last, is_outage=update.outage is not None)
    rates: TopicRates = ask.site.rates
    return ask.page(
        "topic", title=name, name=name, topic=topic, last=last, rates=rates,
        consumers=consumers(update, topic),
        queues=queues[: limits.DASHBOARD_ROWS_MAX],
        left_out=max(len(queues) - limits.DASHBOARD_ROWS_MAX, 0),
    )  # fmt: skip


ROUTES: Final = (get("/topics", list_page), get("/topic", page))
