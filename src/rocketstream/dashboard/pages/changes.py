"""Topics and groups made, changed, paused, deleted, groups moved: form, plan, carrying it out, end.

Law: only a plan that was shown is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from starlette.responses import Response

from rocketstream.admin import Admin, ChangePlan, ResetDone, ResetKind, ResetPlan, ResetTarget
from rocketstream.admin.changes.undo import Undo, read_undo, undo_name
from rocketstream.admin.state import QueueKind
from rocketstream.dashboard.jobs import Job
from rocketstream.dashboard.site import Ask, Handler, PageError, get, number, post, time_ms, tried
from rocketstream.dashboard.words import visible
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import Perm

Settings = Mapping[str, Mapping[str, Any]]
"""The settings at each broker, by name."""
DEFAULT_QUEUES: Final = 8
PERMISSIONS: Final = {"RW": "read and write", "R": "read only", "W": "write only"}
BITS: Final = {"RW": Perm.READ | Perm.WRITE, "R": Perm.READ, "W": Perm.WRITE}
CHOICES: Final = {"true": "yes", "false": "no"}
FIRST: Final = ("consumeEnable", "retryMaxTimes", "retryQueueNums", "consumeMessageOrderly")
"""The settings of a group that are asked for most."""
NOT_ASKED: Final = frozenset({"groupName", "name", "look"})


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form.

    Attributes:
        value: as it stands; empty where brokers differ, or nothing is to be changed.
        choices: the texts of its values; empty for a field to type in.
        note: why it is empty.
    """

    name: str
    label: str
    value: str = ""
    choices: Mapping[str, str] | None = None
    is_number: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of change.

    Attributes:
        noun: ``topic`` or ``group``.
        action: the words of its button.
        now: asks for the settings as they are; None where there are none.
        fields: those of its form, made of the settings; none where the plan is shown at once.
        plan: asks for the plan: the name, the settings as they are, the values of the form.
    """

    noun: str
    title: str
    action: str
    plan: Callable[[Admin, str, Settings, Mapping[str, str]], ChangePlan]
    now: Callable[[Admin, str], Settings] | None = None
    fields: Callable[[Settings], list[Field]] | None = None
    is_new: bool = False


def _group_fields(now: Settings) -> list[Field]:
    """Return a field for each setting that is a number, a text, or yes or no."""
    names = dict.fromkeys(name for each in now.values() for name in each)
    found = []
    for name in sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        values = [each[name] for each in now.values() if name in each]
        if name not in NOT_ASKED and all(isinstance(value, bool | int | str) for value in values):
            found.append(_field(name, name, values))
    return found


def _field(name: str, label: str, values: list[Any]) -> Field:
    told = list(dict.fromkeys(_told(value) for value in values))
    is_flag = isinstance(values[0], bool)
    return Field(
        name, label, told[0] if len(told) == 1 else "", CHOICES if is_flag else None,
        is_number=isinstance(values[0], int) and not is_flag,
        note=f"brokers differ: {', '.join(told)}" if len(told) > 1 else "",
    )  # fmt: skip


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wanted(now: Settings, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a form that differ from what a broker has."""
    wanted: dict[str, Any] = {}
    for name, text in form.items():
        values = [each[name] for each in now.values() if name in each]
        if text and any(_told(value) != text for value in values):
            is_number = isinstance(values[0], int) and not isinstance(values[0], bool)
            wanted[name] = number(name, text) if is_number else _flag(text, values[0])
    return wanted


def _flag(text: str, like: Any) -> Any:
    return text == "true" if isinstance(like, bool) and text in CHOICES else text


def _topic_now(admin: Admin, topic: str) -> Settings:
    return {
        row.broker_name: {
            "read": row.read_queues, "write": row.write_queues, "perm": row.permission,
        }
        for row in admin.topics.route(topic)
    }  # fmt: skip


def _topic_fields(now: Settings) -> list[Field]:
    labels = {"read": "Read queues of each broker", "write": "Write queues of each broker"}
    found = [
        _field(name, label, [each[name] for each in now.values()]) for name, label in labels.items()
    ]
    perm = _field("perm", "Permission", [each["perm"] for each in now.values()])
    perm = Field("perm", perm.label, perm.value, PERMISSIONS, note=perm.note)
    return [*found, perm, Field("attributes", "Attributes (5.x)")]


def _new_topic(now: Settings) -> list[Field]:
    return [
        Field("queues", "Queues on each broker", str(DEFAULT_QUEUES), is_number=True),
        Field("perm", "Permission", "RW", PERMISSIONS),
        Field("order", "Marked as ordered (5.x)", "false", CHOICES),
        Field("attributes", "Attributes (5.x)"),
    ]


def _create_topic(admin: Admin, name: str, now: Settings, form: Mapping[str, str]) -> ChangePlan:
    queues = number("queues", form["queues"])
    return admin.changes.topic_create_plan(
        name,
        DEFAULT_QUEUES if queues is None else queues,
        BITS.get(form["perm"], BITS["RW"]),
        order=form["order"] == "true",
        attributes={name: value for name, value in _pairs(form["attributes"]).items() if value},
    )


def _update_topic(admin: Admin, name: str, now: Settings, form: Mapping[str, str]) -> ChangePlan:
    return admin.changes.topic_update_plan(
        name,
        read_queues=number("read queues", form["read"]),
        write_queues=number("write queues", form["write"]),
        perm=BITS.get(form["perm"]),
        attributes=_pairs(form["attributes"]),
    )


def _pairs(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if not (name and equals):
            raise PageError(400, f"an attribute is NAME=VALUE, not {part!r}")
        found[name] = value or None
    return found


KINDS: Final = {
    "/topic/new": Kind(
        "topic", "New topic", "Make the topic", _create_topic, fields=_new_topic, is_new=True
    ),
    "/topic/settings": Kind(
        "topic", "Settings of topic", "Change the topic", _update_topic, _topic_now, _topic_fields
    ),
    "/topic/delete": Kind(
        "topic", "Delete topic", "Delete the topic",
        lambda admin, name, now, form: admin.changes.topic_delete_plan(name),
    ),
    "/group/new": Kind(
        "group", "New group", "Make the group",
        lambda admin, name, now, form: admin.changes.group_create_plan(name),
        fields=lambda now: [], is_new=True,
    ),
    "/group/settings": Kind(
        "group", "Settings of group", "Change the group",
        lambda admin, name, now, form: admin.changes.group_update_plan(name, _wanted(now, form)),
        lambda admin, name: admin.groups.settings(name), _group_fields,
    ),
    "/group/pause": Kind(
        "group", "Pause group", "Pause the group",
        lambda admin, name, now, form: admin.changes.group_pause_plan(name),
    ),
    "/group/resume": Kind(
        "group", "Resume group", "Resume the group",
        lambda admin, name, now, form: admin.changes.group_resume_plan(name),
    ),
    "/group/delete": Kind(
        "group", "Delete group", "Delete the group",
        lambda admin, name, now, form: admin.changes.group_delete_plan(name),
    ),
}  # fmt: skip


async def page(ask: Ask, kind: Kind) -> Response:
    """Return the form; with ``look``, or where nothing is to be filled in, also the plan."""
    name = ask.value("name") if kind.is_new else ask.need("name")
    desk, now_of = ask.site.desk, kind.now
    now: Settings = {}
    if now_of is not None:
        now = await desk.ask(lambda admin: now_of(admin, name))
    fields = kind.fields(now) if kind.fields is not None else []
    form = {field.name: ask.value(field.name, field.value) for field in fields}
    plan, problem, code = None, None, 200
    if ask.value("look") or kind.fields is None:
        if not name:
            problem, code = f"name the {kind.noun}", 400
        else:
            asked = desk.ask(lambda admin: kind.plan(admin, name, now, form))
            plan, problem, code = await tried(asked)
    return ask.show(
        "change.html", code,
        title=f"{kind.title} {name}".strip(), kind=kind, name=name, now=now,
        names=list(dict.fromkeys(each for broker in now.values() for each in broker)),
        fields=fields, form=form, problem=problem, plan=plan, first=len(FIRST),
        plan_id=ask.offer(plan) if plan is not None else None,
    )  # fmt: skip


def _page_of(kind: Kind) -> Handler:
    return lambda ask: page(ask, kind)


async def apply(ask: Ask) -> Response:
    """Carry out the plan that was shown; the page of the job shows the result."""
    plan = ask.accepted(ChangePlan)
    force = ask.insists(plan.problems)

    def work(admin: Admin, job: Job) -> Any:
        done = admin.changes.apply(plan, force=force, as_shown=True)
        ask.site.collector.refresh()
        return done

    noun, _, action = plan.operation.partition(".")
    title = f"{action.capitalize()} {noun} {plan.name}"
    group = plan.name if noun == "group" else ""
    job = ask.jobs.start("change", title, group, ask.user.name, work, facts={"plan": plan})
    return ask.go("/job", id=job.id)


# --- changes under way, and their results ---------------------------------------------------------


def _job(ask: Ask, job_id: str) -> Job:
    job = ask.jobs.find(job_id)
    if job is None:
        raise PageError(
            404, "this change is no longer known, or belongs to a dashboard that has ended"
        )
    return job


async def job_page(ask: Ask) -> Response:
    """Return the page of one change."""
    job = _job(ask, ask.need("id"))
    undo = None
    if isinstance(job.result, ResetDone) and job.result.undo_path:
        undo = PurePath(job.result.undo_path).name
    return ask.page("job", title=job.title, job=job, undo=undo)


async def stop(ask: Ask) -> Response:
    """End the change after its present step."""
    job = _job(ask, ask.field("job"))
    ask.jobs.stop(job)
    return ask.go("/job", id=job.id)


# --- resets ---------------------------------------------------------------------------------------

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
    if kind not in TARGETS:
        raise PageError(400, "choose where the group is to go")
    value = ask.value(kind)
    found: int | str | None = value or None
    if kind == "time":
        found = time_ms("the time", value)
    elif kind in ("offset", "shift"):
        found = number("the offset" if kind == "offset" else "the number of messages", value)
    if found is None and kind not in ("earliest", "latest"):
        raise PageError(400, f"“{TARGETS[kind].lower()}” takes a value: fill it in")
    return ResetTarget.of(ResetKind(kind), found)


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


async def reset(ask: Ask) -> Response:
    """Return the form; with a target also what would be done."""
    name = ask.need("group")
    update = ask.update()
    group = update.groups.get(name)
    topics = sorted({q.topic for q in group.of_kind(QueueKind.TOPIC)}) if group else []
    directory = ask.site.settings.undo_files
    clusters = {broker.cluster for broker in update.state.brokers} if update.state else set()
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
        others=sorted(set(update.groups) - {name}),
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


async def apply_reset(ask: Ask) -> Response:
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
    get("/group/reset", reset),
    post("/group/reset", apply_reset),
    *(get(path, _page_of(kind)) for path, kind in KINDS.items()),
    post("/change", apply),
    get("/job", job_page),
    post("/job/stop", stop),
)
