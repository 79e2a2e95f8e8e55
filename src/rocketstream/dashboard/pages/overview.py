"""The overview: every group, the most urgent first.

Law: asks no broker; it shows the last sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from rocketstream import limits
from rocketstream.admin.state import URGENCY, GroupState, GroupVerdict, Verdict
from rocketstream.dashboard.site import Ask, get
from rocketstream.watch import Update


@dataclass(frozen=True, slots=True)
class Row:
    """One group of the overview."""

    state: GroupState
    verdict: GroupVerdict

    @property
    def members(self) -> int | None:
        """Connected members; None when a broker did not report them."""
        return None if self.state.members is None else len(self.state.members)


@dataclass(frozen=True, slots=True)
class View:
    """The contents of the overview, after filter and order."""

    rows: tuple[Row, ...]
    left_out: int
    counts: tuple[tuple[Verdict, int], ...]
    query: str
    verdict: str
    order: str


_LOW: Final = -1.0


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


def no_verdict(group: str) -> GroupVerdict:
    """Return the verdict for a group that has not been judged yet."""
    return GroupVerdict(group, Verdict.UNKNOWN, "not judged yet")


def view(update: Update, query: str = "", verdict: str = "", order: str = "verdict") -> View:
    """Return the contents of the overview for a sweep."""
    groups = update.state.groups if update.state is not None else {}
    rows = [
        Row(state, update.verdicts.get(name) or no_verdict(name)) for name, state in groups.items()
    ]
    found = [row.verdict.verdict for row in rows]
    counts = tuple((each, found.count(each)) for each in URGENCY if each in found)
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
    shown = tuple(kept[: limits.DASHBOARD_ROWS_MAX])
    return View(shown, len(kept) - len(shown), counts, query, verdict, order)


async def page(ask: Ask) -> Response:
    """Return the page, or its live part."""
    found = view(ask.update(), ask.value("q"), ask.value("verdict"), ask.value("order"))
    template = "overview_live.html" if ask.is_part else "overview.html"
    return ask.show(template, view=found, title="Groups")


ROUTES: Final = (get("/", page),)
