"""One group: its verdict, its queues and their owners, why it is behind, and its history.

Groups that Spark queries hold have a page more, with the figures those queries report about
themselves; brokers do not see a query that claims no group.

Law: banner, figures, table and causes are those of one look, whose moment the page names.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from rocketstream import limits
from rocketstream.admin.rows import MemberRow, RunningInfoRow
from rocketstream.admin.state import CauseKind, GroupState, GroupVerdict, QueueKind, QueueState
from rocketstream.dashboard.site import Ask, get, is_spark, pick, tried
from rocketstream.dashboard.users import Role
from rocketstream.dashboard.words import visible
from rocketstream.errors import RocketMQError

RANGES: Final = {
    "15m": 900_000,
    "1h": 3_600_000,
    "6h": 6 * 3_600_000,
    "24h": 24 * 3_600_000,
    "7d": 7 * 24 * 3_600_000,
    "30d": 30 * 24 * 3_600_000,
}
DEFAULT_RANGE: Final = "1h"
POINTS: Final = 400
TABLE_POINTS: Final = 20
TOLD_KEPT_MS: Final = 4_000
COLUMNS: Final = (
    "group", "kind", "topic", "broker", "queue", "minOffset", "committedOffset", "maxOffset",
    "lag", "timeLagMs", "lastConsumedMs", "clientId", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Owned:
    """One member and the queues it owns."""

    row: MemberRow
    queues: tuple[QueueState, ...]

    @property
    def is_spark(self) -> bool:
        """Whether the member stands for a query on Spark."""
        return is_spark(self.row)


def members_of(state: GroupState) -> tuple[Owned, ...]:
    """Return the members with the queues they own, including members without any."""
    return tuple(
        Owned(member, tuple(q for q in state.queues if q.client_id == member.client_id))
        for member in state.members or ()
    )


def shown_queues(queues: Iterable[QueueState]) -> list[QueueState]:
    """Return queues in the order of the table: topics first, each kind in its given order."""
    order = list(QueueKind)
    return sorted(queues, key=lambda queue: order.index(queue.kind))


async def page(ask: Ask) -> Response:
    """Return the page from what is known; its live part looks into the group anew."""
    name = ask.need("name")
    problem = await looked(ask, name) if ask.is_part else None
    update = ask.update()
    state: GroupState = pick(update, "group", name)
    look = update.looks.get(name)
    last = update.last_known.get(name)
    queues = shown_queues(state.queues)
    values: dict[str, Any] = {
        "title": name,
        "name": name,
        "state": state,
        "verdict": update.verdict_of(name),
        "report": look.report if look is not None and look.state is state else None,
        "queues": queues[: limits.DASHBOARD_ROWS_MAX],
        "left_out": max(len(queues) - limits.DASHBOARD_ROWS_MAX, 0),
        "members": members_of(state),
        "problem": problem,
        "last": last,
        "last_queues": {queue.key: queue for queue in last.queues} if last is not None else {},
        "is_paused": look is not None
        and any(c.kind is CauseKind.PAUSED for c in look.report.causes),
    }
    if ask.is_part:
        return ask.show("group_live.html", **values)
    range_ = ask.value("range", DEFAULT_RANGE)
    range_ = range_ if range_ in RANGES else DEFAULT_RANGE
    points = await series(ask, name, RANGES[range_], TABLE_POINTS)
    return ask.show("group.html", **values, range=range_, ranges=tuple(RANGES), points=points)


async def looked(ask: Ask, name: str) -> str | None:
    """Look into a group, for all who look at the moment; return why that was not possible."""
    collector = ask.site.collector
    look = ask.site.desk.look(lambda: collector.look(name), key=("look", name))
    _, problem, _ = await tried(look)
    return problem


async def series(ask: Ask, name: str, range_ms: int, points: int) -> list[Any]:
    """Return the group's history; empty where no history is kept."""
    history = ask.site.history
    if history is None:
        return []
    until = ask.site.now_ms
    return await ask.site.desk.locally(
        lambda: history.series(name, since_ms=until - range_ms, until_ms=until, points=points)
    )


async def history(ask: Ask) -> Response:
    """Return the chart's data: seconds since 1970, messages, seconds of age, messages a second."""
    name = ask.need("name")
    range_ms = RANGES.get(ask.value("range", DEFAULT_RANGE), RANGES[DEFAULT_RANGE])
    return JSONResponse(chart(await series(ask, name, range_ms, POINTS)))


def chart(points: Iterable[Any]) -> Mapping[str, list[float | None]]:
    """Return the columns of a chart; None for an unknown figure, so that the line breaks."""
    found = list(points)
    return {
        "at": [point.at_ms / 1_000 for point in found],
        "lag": [point.lag for point in found],
        "age": [_seconds(point.time_lag_ms) for point in found],
        "in": [point.arrival_rate for point in found],
        "out": [point.consume_rate for point in found],
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000


async def export(ask: Ask) -> Response:
    """Return the queues as CSV, as the last sweep found them."""
    name = ask.need("name")
    update = ask.update()
    state = pick(update, "group", name)
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(COLUMNS)
    for queue in shown_queues(state.queues):
        rows.writerow(
            [
                _cell(state.group), queue.kind.value, _cell(queue.topic), _cell(queue.broker_name),
                queue.queue_id, queue.min_offset, queue.committed_offset, queue.max_offset,
                queue.lag, queue.time_lag_ms(state.taken_ms), queue.last_consumed_ms,
                _cell(queue.client_id or ""), _cell(queue.error or ""),
            ]
        )  # fmt: skip
    disposition = {"Content-Disposition": 'attachment; filename="group.csv"'}
    return Response(out.getvalue(), media_type="text/csv", headers=disposition)


def _cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula, and that hides nothing."""
    text = visible(text)
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


# --- Spark queries --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """One query that holds a group.

    Attributes:
        told: the answer of its member; None if it was not asked, or did not answer.
        problem: why the member did not answer.
    """

    group: GroupState
    verdict: GroupVerdict
    member: MemberRow
    told: RunningInfoRow | None = None
    problem: str | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        """The facts it reports about itself, by name."""
        return self.told.properties if self.told is not None else {}

    def number(self, name: str) -> float | None:
        """Return a figure the query reports; None where it does not."""
        try:
            return float(self.facts[name])
        except (KeyError, ValueError):
            return None

    @property
    def rate(self) -> float | None:
        """Messages a second the listener consumed, as its member counts them."""
        if self.told is None or not self.told.rates:
            return None
        return sum(each.get("consumeOKTPS", 0.0) for each in self.told.rates.values())


async def spark(ask: Ask) -> Response:
    """Return the page of Spark queries from the last sweep; its live part asks their members."""
    update = ask.update()
    found = [
        Query(state, update.verdict_of(name), member)
        for name, state in sorted(update.groups.items())
        for member in state.members or ()
        if is_spark(member)
    ]
    if ask.is_part:
        most = limits.DASHBOARD_SPARK_MAX
        asked = await asyncio.gather(*(_asked(ask, query) for query in found[:most]))
        found = [*asked, *found[most:]]
    return ask.page("spark", title="Spark", queries=found)


async def _asked(ask: Ask, query: Query) -> Query:
    group, client_id = query.group.group, query.member.client_id
    try:
        told = await ask.site.desk.ask(
            lambda admin: admin.groups.running_info(group, client_id),
            key=("spark", group, client_id),
            keep_ms=TOLD_KEPT_MS,
        )
    except RocketMQError as error:
        return Query(query.group, query.verdict, query.member, problem=error.message)
    return Query(query.group, query.verdict, query.member, told[0] if told else None)


ROUTES: Final = (
    get("/group", page),
    get("/group/export", export, Role.EXPORT),
    get("/group/history", history),
    get("/spark", spark),
)
