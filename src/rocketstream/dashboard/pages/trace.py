"""The trace of a message as a timeline.

Law: where clocks differ the page says whose clock a time is by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from rocketstream.admin import TraceTimeline
from rocketstream.admin.core.words import span
from rocketstream.dashboard.site import Ask, get

TRACE_KEPT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the timeline.

    Attributes:
        at_ms: when it happened, ms since 1970; None where the record with the time is lost.
        css: ``good`` or ``bad`` for an outcome, else empty.
    """

    at_ms: int | None
    text: str
    detail: str
    css: str = ""


def steps(told: TraceTimeline) -> list[Step]:
    """Return the recorded steps in order of time; those without a time come last."""
    return sorted(_steps(told), key=lambda step: (step.at_ms is None, step.at_ms or 0))


def _steps(told: TraceTimeline) -> Iterator[Step]:
    for send in told.sends:
        yield Step(
            send.began_ms,
            f"Sent by {send.group or 'an unnamed producer'}"
            + (f" ({send.kind})" if send.kind != "normal" else ""),
            f"{'stored' if send.is_stored else 'not stored'} after {span(send.cost_ms)}; "
            f"producer {send.client or 'unknown'}, broker {send.store_host or 'unknown'}",
            "good" if send.is_stored else "bad",
        )
    if told.store_ms is not None:
        yield Step(told.store_ms, "Stored", f"by broker {told.store_host}, by its clock", "good")
    for end in told.ends:
        yield Step(end.at_ms, f"Transaction: {end.state}", f"told by {end.group or 'its producer'}")
    for each in told.tries:
        again = f", try {each.retry_times + 1}" if each.retry_times else ""
        cost = "its end is not recorded" if each.cost_ms is None else f"after {span(each.cost_ms)}"
        yield Step(
            each.began_ms,
            f"Given to {each.group}{again}",
            f"{each.outcome} {cost}; consumer {each.client or 'unknown'}",
            {"SUCCESS": "good", "UNFINISHED": ""}.get(each.outcome, "bad"),
        )


async def page(ask: Ask) -> Response:
    """Return the timeline, or the form that asks for a message."""
    topic, msg_id = ask.value("topic"), ask.value("id")
    told: TraceTimeline | None = None
    if topic and msg_id:
        told = await ask.site.desk.ask(
            lambda admin: admin.messages.trace(topic, msg_id),
            key=("trace", topic, msg_id),
            keep_ms=TRACE_KEPT_MS,
        )
    found = steps(told) if told else []
    first = next((step.at_ms for step in found if step.at_ms is not None), None)
    return ask.show(
        "trace.html", title="Trace", topic=topic, msg_id=msg_id, told=told, steps=found, first=first
    )


ROUTES: Final = (get("/message/trace", page),)
