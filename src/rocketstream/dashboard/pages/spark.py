"""Spark queries as consumers: the group each holds, how far it is, and how fast.

The figures are those a query's member reports about itself; brokers do not see a query that claims
no group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from rocketstream import limits
from rocketstream.admin.rows import MemberRow, RunningInfoRow
from rocketstream.admin.state import GroupState, GroupVerdict
from rocketstream.dashboard.pages.overview import verdict_of
from rocketstream.dashboard.site import Ask, get, is_spark
from rocketstream.errors import RocketMQError

TOLD_KEPT_MS: Final = 4_000


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


async def page(ask: Ask) -> Response:
    """Return the page from the last sweep; its live part asks the queries' members."""
    update = ask.update()
    groups = update.state.groups if update.state else {}
    found = [
        Query(state, verdict_of(update, name), member)
        for name, state in sorted(groups.items())
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


ROUTES: Final = (get("/spark", page),)
