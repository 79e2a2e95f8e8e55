"""Topics and groups made, changed, paused, deleted: the form, the plan, carrying it out, its end.

Law: only a plan that was shown is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from starlette.responses import Response

from rocketstream.admin import Admin, ChangePlan, ResetDone
from rocketstream.dashboard.jobs import Job
from rocketstream.dashboard.site import Ask, Handler, PageError, get, number, post, tried
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


ROUTES: Final = (
    *(get(path, _page_of(kind)) for path, kind in KINDS.items()),
    post("/change", apply),
    get("/job", job_page),
    post("/job/stop", stop),
)
