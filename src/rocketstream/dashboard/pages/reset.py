"""Moving a group: the form, the plan per queue, carrying it out, and taking it back.

Law: only a plan that was shown is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response

from rocketstream.admin import Admin, ResetPlan, ResetTarget
from rocketstream.admin.safety.undo import Undo, read_undo
from rocketstream.dashboard.jobs import Job
from rocketstream.dashboard.site import Ask, PageError, get, number, post, time_ms
from rocketstream.dashboard.tokens import Role
from rocketstream.dashboard.words import visible
from rocketstream.errors import ConfigurationError

TARGETS: Final = {
    "latest": "Skip everything: to the end of each queue",
    "earliest": "Repeat everything: to the oldest message kept",
    "time": "To a time",
    "offset": "To an offset",
    "shift": "Forward or back by a number of messages",
    "copy": "To where another group is",
}
UNDO_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class UndoFile:
    """A reset that can be taken back."""

    name: str
    undo: Undo


def undo_files(directory: Path, group: str) -> list[UndoFile]:
    """Return a group's undo files, the newest first, without unreadable ones."""
    try:
        names = sorted((path.name for path in directory.glob("*.json")), reverse=True)
    except OSError:
        return []
    found: list[UndoFile] = []
    for name in names:
        if not name.startswith(_file_start(group)):
            continue
        try:
            undo = read_undo(directory / name)
        except ConfigurationError:
            continue
        if undo.group == group:
            found.append(UndoFile(name, undo))
    return sorted(found, key=lambda file: -file.undo.taken_ms)[:UNDO_SHOWN]


def _file_start(group: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in group) + "-"


def target_of(ask: Ask) -> ResetTarget:
    """Return the target named in the form.

    Raises:
        PageError, ConfigurationError: the form names no target.
    """
    kind, value = ask.value("target"), ask.value("value")
    if kind == "latest":
        return ResetTarget.latest()
    if kind == "earliest":
        return ResetTarget.earliest()
    if kind == "time" and (at := time_ms("the time", value)) is not None:
        return ResetTarget.time(at)
    if kind == "offset" and (offset := number("the offset", value)) is not None:
        return ResetTarget.offset(offset)
    if kind == "shift" and (by := number("the number of messages", value)) is not None:
        return ResetTarget.shift(by)
    if kind == "copy" and value:
        return ResetTarget.copy_of(value)
    if kind not in TARGETS:
        raise PageError(400, "choose where the group is to go")
    raise PageError(400, f"“{TARGETS[kind].lower()}” takes a value: fill it in")


async def page(ask: Ask) -> Response:
    """Return the form; with a target also what would be done."""
    name = ask.need("group")
    state = ask.update().state
    group = state.groups.get(name) if state else None
    topics = sorted({q.topic for q in group.queues if q.kind.value == "topic"}) if group else []
    directory = ask.site.settings.undo_files
    files = await ask.site.desk.locally(lambda: undo_files(directory, name))
    plan, problem, code = None, None, 200
    if ask.value("undo") or ask.value("target"):
        try:
            plan = await _plan(ask, name, files)
        except PageError as error:
            problem, code = error.message, error.status
        except ConfigurationError as error:
            problem, code = error.message, 400
    plan_id = None
    if plan is not None and ask.may(Role.ACT):
        plan_id = ask.site.plans.keep(plan, ask.user.session_id)
    return ask.show(
        "reset.html", code,
        title=f"Reset {name}", name=name, topics=topics, targets=TARGETS, plan=plan,
        plan_id=plan_id, problem=problem, files=files, undo=ask.value("undo"),
        target=ask.value("target"), value=ask.value("value"),
        topic=ask.value("topic") or (topics[0] if len(topics) == 1 else ""),
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
    target, topic = target_of(ask), ask.value("topic")
    if not topic and target.group is None:
        raise PageError(400, "name the topic the group is to be moved in")
    return await ask.site.desk.ask(
        lambda admin: admin.changes.reset_plan(name, topic or None, target)
    )


async def apply(ask: Ask) -> Response:
    """Carry out the plan that was shown; the page of the job shows the result."""
    plan = ask.site.plans.take(ask.field("plan"), ask.user.session_id)
    if not isinstance(plan, ResetPlan):
        raise PageError(400, "this preview is of another change: look again first")
    force = ask.field("force") == "yes"
    if plan.problems and not force:
        raise PageError(409, f"not done: {'; '.join(plan.problems)}")
    directory = ask.site.settings.undo_files

    def work(admin: Admin, job: Job) -> Any:
        # The form confirmed the plan it showed; a plan that is no longer true is refused.
        done = admin.changes.reset_apply(plan, force=force, as_shown=True, undo_directory=directory)
        ask.site.collector.refresh()
        return done

    title = f"Move {plan.group} to {plan.target.describe()}"
    job = ask.jobs.start("reset", title, plan.group, ask.user.name, work, facts={"plan": plan})
    ask.site.desk.forget(("group", plan.group))
    return ask.go("/job", id=job.id)


ROUTES: Final = (
    get("/group/reset", page),
    post("/group/reset", apply),
)
