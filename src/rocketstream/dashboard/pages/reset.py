"""Moving a group: the form, the plan per queue, carrying it out, and taking it back.

Law: only a plan that was shown is carried out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

from rocketstream.admin import Admin, ResetPlan, ResetTarget
from rocketstream.admin.safety.undo import Undo, read_undo, undo_name
from rocketstream.admin.state import QueueKind
from rocketstream.dashboard.jobs import Job
from rocketstream.dashboard.site import Ask, PageError, get, number, post, time_ms, tried
from rocketstream.dashboard.words import visible
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue

TARGETS: Final = {
    "time": "To what was stored at a time",
    "offset": "To an offset",
    "shift": "Forward by a number of messages, back by a negative one",
    "copy": "To where another group is",
    "earliest": "To the oldest message kept: everything is consumed again",
    "latest": "To the end: everything that waits is skipped",
}
EVERY_TOPIC: Final = "*"
UNDO_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class UndoFile:
    """A reset that can be taken back."""

    name: str
    undo: Undo


def undo_files(directory: Path, group: str, clusters: Collection[str]) -> list[UndoFile]:
    """Return a group's undo files, the newest first, without unreadable ones and those of other
    clusters; files of earlier releases name none."""
    try:
        names = sorted((path.name for path in directory.glob("*.json")), reverse=True)
    except OSError:
        return []
    found: list[UndoFile] = []
    for name in names:
        if not name.startswith(f"{undo_name(group)}-"):
            continue
        try:
            undo = read_undo(directory / name)
        except ConfigurationError:
            continue
        if undo.group == group and (not undo.cluster or undo.cluster in clusters):
            found.append(UndoFile(name, undo))
    return sorted(found, key=lambda file: -file.undo.taken_ms)[:UNDO_SHOWN]


def target_of(ask: Ask) -> ResetTarget:
    """Return the target named in the form.

    Raises:
        PageError, ConfigurationError: the form names no target.
    """
    kind = ask.value("target")
    value = ask.value(kind) if kind in TARGETS else ""
    match kind:
        case "latest":
            return ResetTarget.latest()
        case "earliest":
            return ResetTarget.earliest()
        case "time" if (at := time_ms("the time", value)) is not None:
            return ResetTarget.time(at)
        case "offset" if (offset := number("the offset", value)) is not None:
            return ResetTarget.offset(offset)
        case "shift" if (by := number("the number of messages", value)) is not None:
            return ResetTarget.shift(by)
        case "copy" if value:
            return ResetTarget.copy_of(value)
    if kind not in TARGETS:
        raise PageError(400, "choose where the group is to go")
    raise PageError(400, f"“{TARGETS[kind].lower()}” takes a value: fill it in")


def queues_of(text: str, topic: str | None) -> list[MessageQueue] | None:
    """Return the queue that ``BROKER:ID`` names, for none None: all of the topic.

    Raises:
        PageError: it is not of this form, or there is no topic.
    """
    if not text:
        return None
    broker, _, queue_id = text.rpartition(":")
    if not (topic and broker and queue_id.isdecimal()):
        raise PageError(400, "one queue is named BROKER:ID, such as broker-a:3, and its topic")
    return [MessageQueue(topic, broker, int(queue_id))]


async def page(ask: Ask) -> Response:
    """Return the form; with a target also what would be done."""
    name = ask.need("group")
    state = ask.update().state
    group = state.groups.get(name) if state else None
    topics = sorted({q.topic for q in group.of_kind(QueueKind.TOPIC)}) if group else []
    directory = ask.site.settings.undo_files
    clusters = {broker.cluster for broker in state.brokers} if state else set()
    files = await ask.site.desk.locally(lambda: undo_files(directory, name, clusters))
    plan, problem, code = None, None, 200
    if ask.value("undo") or ask.value("target"):
        plan, problem, code = await tried(_plan(ask, name, files))
    fields = {field: ask.value(field) for field in ("topic", "target", "queue", "undo", *TARGETS)}
    if len(topics) == 1:
        fields["topic"] = fields["topic"] or topics[0]
    return ask.show(
        "reset.html", code,
        title=f"Reset {name}", name=name, topics=topics, targets=TARGETS, plan=plan,
        plan_id=ask.offer(plan) if plan is not None else None, problem=problem, files=files,
        fields=fields, every=EVERY_TOPIC,
        others=sorted(set(state.groups) - {name}) if state else [],
    )  # fmt: skip


async def _plan(ask: Ask, name: str, files: list[UndoFile]) -> ResetPlan:
    """Ask for the plan; costs brokers some requests, changes nothing."""
    wanted = ask.value("undo")
    if wanted:
        if wanted not in {file.name for file in files}:
            raise PageError(404, f"group {visible(name)} has no undo file of that name")
        path = ask.site.settings.undo_files / wanted
        return await ask.site.desk.ask(lambda admin: admin.changes.undo(path))
    target = target_of(ask)
    if not ask.value("topic"):
        raise PageError(400, "name the topic the group is to be moved in, or all")
    topic = ask.value("topic") if ask.value("topic") != EVERY_TOPIC else None
    queues = queues_of(ask.value("queue"), topic)
    return await ask.site.desk.ask(
        lambda admin: admin.changes.reset_plan(name, topic, target, queues)
    )


async def apply(ask: Ask) -> Response:
    """Carry out the plan that was shown; the page of the job shows the result."""
    plan = ask.accepted(ResetPlan)
    force = ask.insists(plan.problems)
    directory = ask.site.settings.undo_files

    def work(admin: Admin, job: Job) -> Any:
        # The form confirmed the plan it showed; a plan that is no longer true is refused.
        done = admin.changes.reset_apply(plan, force=force, as_shown=True, undo_directory=directory)
        ask.site.collector.refresh()
        return done

    title = f"Move {plan.group} to {plan.target.describe()}"
    job = ask.jobs.start("reset", title, plan.group, ask.user.name, work)
    return ask.go("/job", id=job.id)


ROUTES: Final = (
    get("/group/reset", page),
    post("/group/reset", apply),
)
