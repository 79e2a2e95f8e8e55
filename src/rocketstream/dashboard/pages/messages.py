"""Messages: found by id, key, time and offset, shown decoded and masked, and their traces.

Law: no raw body gets here: ``Admin.messages.search`` masks every message. Where clocks differ the
timeline of a trace says whose clock a time is by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from rocketstream import limits
from rocketstream.admin import (
    Admin,
    BodyFormat,
    MessageFilter,
    SearchPage,
    ShownMessage,
    TraceTimeline,
)
from rocketstream.admin.core.words import span
from rocketstream.admin.state import TopicState
from rocketstream.dashboard.jobs import Job
from rocketstream.dashboard.site import Ask, PageError, get, number, post, time_ms, tried
from rocketstream.dashboard.users import Role
from rocketstream.dashboard.words import as_json, visible

FORMATS: Final = ("auto", "text", "json", "hex")
FIELDS: Final = (
    "topic", "id", "key", "since", "until", "broker", "queue", "offset", "tag", "text", "sql",
    "newest", "resume",
)  # fmt: skip
RESUME_CHARS_MAX: Final = 20_000
"""The word that a search is continued with has some 33 characters for each queue."""
TRACK_KEPT_MS: Final = 5_000
TRACE_KEPT_MS: Final = 5_000
TOPICS_MAX: Final = 500
NEWEST: Final = 10
"""Messages of a topic that are shown before anything is searched for."""


def search(found: Mapping[str, str], most: int) -> Callable[[Admin], SearchPage]:
    """Return the question for the desk that makes a search.

    Raises:
        PageError: a text is not a number or a time.
    """
    since, until = time_ms("from", found["since"]), time_ms("until", found["until"])
    queue_id, offset = number("the queue", found["queue"]), number("the offset", found["offset"])
    wanted = MessageFilter(
        tag=found["tag"] or None, text=found["text"] or None, sql=found["sql"] or None
    )

    def question(admin: Admin) -> SearchPage:
        return admin.messages.search(
            found["topic"],
            msg_id=found["id"] or None,
            key=found["key"] or None,
            since_ms=since,
            until_ms=until,
            broker_name=found["broker"] or None,
            queue_id=queue_id,
            offset=offset,
            wanted=wanted if wanted else None,
            newest_first=found["newest"] != "0",
            most=most,
            examined_most=limits.DASHBOARD_EXAMINED_MAX,
            timeout_ms=limits.DASHBOARD_ANSWER_MS // 2,
            resume=found["resume"] or None,
        )

    return question


async def list_page(ask: Ask) -> Response:
    """Return the search form and the messages found; of a topic alone the newest."""
    form = {name: ask.value(name) for name in FIELDS if name != "resume"}
    form["resume"] = ask.value("resume", most=RESUME_CHARS_MAX)
    is_search = any(form[name] for name in FIELDS if name != "topic")
    topics = sorted(ask.update().topics)[:TOPICS_MAX]
    found: SearchPage | None = None
    problem, code = None, 200
    if form["topic"]:
        most = limits.DASHBOARD_MESSAGES_MAX if is_search else NEWEST
        found, problem, code = await tried(_found(ask, form, most))
    onward = {**form, "resume": found.resume} if found and found.resume else None
    return ask.show(
        "messages.html", code, title="Messages", searched=form, found=found, topics=topics,
        problem=problem, onward=onward, is_search=is_search,
        busiest=busiest(ask) if not form["topic"] else [],
        preview=limits.DASHBOARD_PREVIEW_CHARS,
    )  # fmt: skip


async def _found(ask: Ask, form: Mapping[str, str], most: int) -> SearchPage:
    return await ask.site.desk.ask(search(form, most))


def busiest(ask: Ask) -> list[TopicState]:
    """Return the topics that receive most, to begin with."""
    rates = ask.site.rates
    mine = [each for each in ask.update().topics.values() if each.kind == "normal"]
    mine.sort(
        key=lambda topic: (-(rates.rate(topic.topic) or 0), -(topic.messages or 0), topic.topic)
    )
    return mine[:NEWEST]


async def one(ask: Ask) -> ShownMessage:
    """Return the message that the address names.

    Raises:
        PageError: there is no such message.
    """
    topic, msg_id = ask.need("topic"), ask.need("id")
    how = ask.value("how", "auto")
    how = how if how in FORMATS else "auto"
    found = await ask.site.desk.ask(
        lambda admin: admin.messages.search(
            topic, msg_id=msg_id, most=1, how=BodyFormat.parse(how), timeout_ms=10_000
        )
    )
    if not found.messages:
        raise PageError(
            404, f"topic {visible(topic)} has no message {visible(msg_id)}, or no longer"
        )
    return found.messages[0]


async def page(ask: Ask) -> Response:
    """Return the page of one message."""
    message = await one(ask)
    owners: list[tuple[str, str]] = []
    if ask.may(Role.ACT):
        owners = [
            (name, member.client_id)
            for name, group in ask.update().groups.items()
            if any(queue.topic == message.topic for queue in group.queues)
            for member in group.members or ()
        ]
    return ask.show(
        "message.html", title=f"Message {message.msg_id}", message=message, formats=FORMATS,
        how=ask.value("how", "auto"), owners=owners[: limits.DASHBOARD_ROWS_MAX],
        most=limits.DASHBOARD_BODY_SHOWN_CHARS,
    )  # fmt: skip


async def track(ask: Ask) -> Response:
    """Return the part that shows the fate of a message in every group."""
    topic, msg_id = ask.need("topic"), ask.need("id")
    rows = await ask.site.desk.ask(
        lambda admin: admin.messages.track(topic, msg_id),
        key=("track", topic, msg_id),
        keep_ms=TRACK_KEPT_MS,
    )
    return ask.show("track.html", rows=rows)


async def export(ask: Ask) -> Response:
    """Return one message as JSON, decoded and masked as it is shown."""
    message = await one(ask)
    answer = JSONResponse(None)
    answer.body = as_json(message.as_json()).encode("utf-8", "backslashreplace")
    answer.headers["Content-Length"] = str(len(answer.body))
    answer.headers["Content-Disposition"] = 'attachment; filename="message.json"'
    return answer


async def consume(ask: Ask) -> Response:
    """Make one member consume one message now."""
    topic, msg_id = ask.field("topic"), ask.field("id")
    group, _, client_id = ask.field("member").partition("\t")
    if not (topic and msg_id and group and client_id):
        raise PageError(400, "choose the member that is to consume the message")
    stored_ms = number("stored", ask.field("stored"))

    def work(admin: Admin, job: Job) -> Any:
        return admin.messages.consume(group, client_id, topic, msg_id, stored_ms=stored_ms)

    title = f"Have {client_id} of {group} consume message {msg_id}"
    facts = {"topic": topic, "id": msg_id}
    job = ask.jobs.start("consume", title, group, ask.user.name, work, facts=facts)
    return ask.go("/job", id=job.id)


# --- trace ----------------------------------------------------------------------------------------


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


async def trace(ask: Ask) -> Response:
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


ROUTES: Final = (
    get("/messages", list_page),
    get("/message", page),
    get("/message/track", track),
    get("/message/trace", trace),
    get("/message/export", export, Role.EXPORT),
    post("/message/consume", consume),
)
