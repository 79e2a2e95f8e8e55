"""Dead letters: of which groups, for which causes, and sending them again.

Law: only a plan that was shown is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from rocketstream import limits
from rocketstream.admin import Admin, LetterFilter, RedrivePlan
from rocketstream.dashboard.jobs import Job
from rocketstream.dashboard.pages.overview import no_verdict
from rocketstream.dashboard.site import Ask, PageError, address, get, number, post, time_ms
from rocketstream.dashboard.tokens import Role

CAUSES_KEPT_MS: Final = 5_000
FIELDS: Final = (
    "group", "cause", "where", "tag", "key", "origin", "since", "until", "to", "limit", "rate",
)  # fmt: skip
DEFAULT_RATE: Final = "100"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which letters go where, how many, and how fast.

    Attributes:
        fields: the form's fields as entered, to be shown again.
        rate: letters a second; None sends as fast as the brokers accept them.
    """

    fields: dict[str, str]
    wanted: LetterFilter
    to: str | None
    limit: int | None
    rate: float | None

    @property
    def group(self) -> str:
        """The group whose letters are sent."""
        return self.fields["group"]


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan, and the selection it was made for."""

    selection: Selection
    plan: RedrivePlan


def selection(ask: Ask) -> Selection:
    """Return the selection in the address.

    Raises:
        PageError: a text is not a number or a time.
    """
    found = {name: ask.value(name) for name in FIELDS}
    rate: float | None = None
    if found["rate"]:
        try:
            rate = float(found["rate"])
        except ValueError:
            rate = 0.0
        if not 0 < rate < 1e6:
            raise PageError(400, "the rate takes letters a second above 0")
    limit = number("the limit", found["limit"])
    if limit is not None and limit < 1:
        raise PageError(400, "the limit takes a number of letters from 1")
    wanted = LetterFilter(
        since_ms=time_ms("from", found["since"]),
        until_ms=time_ms("until", found["until"]),
        tag=found["tag"] or None,
        key=found["key"] or None,
        origin=found["origin"] or None,
        cause=found["cause"] or None,
        where=found["where"] or None,
    )
    return Selection(found, wanted, found["to"] or None, limit, rate)


async def page(ask: Ask) -> Response:
    """Return the page of groups with dead letters, or with a group the page of its causes."""
    update = ask.update()
    groups = update.state.groups if update.state else {}
    having = [
        (state, update.verdicts.get(name) or no_verdict(name))
        for name, state in groups.items()
        if state.dead_letters or (state.dead_letters is None and name == ask.value("group"))
    ]
    having.sort(key=lambda pair: -(pair[0].dead_letters or 0))
    name = ask.value("group")
    told = None
    if name:
        told = await ask.site.desk.ask(
            lambda admin: admin.letters.by_cause(name, most=limits.DASHBOARD_LETTERS_MAX),
            key=("letters", name),
            keep_ms=CAUSES_KEPT_MS,
        )
    jobs = ask.site.jobs.of_group(name) if ask.site.jobs is not None and name else []
    shown = having[: limits.DASHBOARD_ROWS_MAX]
    return ask.show(
        "letters.html", title="Dead letters", having=shown, name=name, told=told,
        left_out=len(having) - len(shown),
        jobs=[job for job in jobs if job.kind == "redrive"],
        preview=limits.DASHBOARD_PREVIEW_CHARS,
    )  # fmt: skip


async def redrive_page(ask: Ask) -> Response:
    """Return the form, and with ``look`` also what would be sent."""
    group = ask.need("group")
    plan, plan_id, problem, code = None, None, None, 200
    fields = {name: ask.value(name) for name in FIELDS}
    if not ask.value("look"):
        fields["rate"] = fields["rate"] or DEFAULT_RATE
    else:
        try:
            chosen = selection(ask)
            plan = await ask.site.desk.ask(
                lambda admin: admin.letters.redrive_plan(
                    group, chosen.wanted, to=chosen.to, limit=chosen.limit
                )
            )
            if ask.may(Role.ACT):
                plan_id = ask.site.plans.keep(Preview(chosen, plan), ask.user.session_id)
        except PageError as error:
            problem, code = error.message, error.status
    return ask.show(
        "redrive.html", code, title=f"Redrive {group}", group=group, fields=fields, plan=plan,
        plan_id=plan_id, problem=problem, preview=limits.DASHBOARD_PREVIEW_CHARS,
        retry=f"%RETRY%{group}",
    )  # fmt: skip


async def redrive(ask: Ask) -> Response:
    """Send the letters that were shown."""
    preview = ask.site.plans.take(ask.field("plan"), ask.user.session_id)
    if not isinstance(preview, Preview):
        raise PageError(400, "this preview is of another change: look again first")
    chosen, plan = preview.selection, preview.plan
    if plan.problems:
        raise PageError(409, f"not done: {'; '.join(plan.problems)}")

    def work(admin: Admin, job: Job) -> Any:
        def sent(*_: object) -> None:
            job.done += 1

        return admin.letters.redrive(
            chosen.group,
            chosen.wanted,
            to=chosen.to,
            limit=chosen.limit,
            rate=chosen.rate,
            on_sent=sent,
            should_stop=job.stop.is_set,
        )

    again = address("/redrive", **{**chosen.fields, "look": "1"})
    title = f"Send dead letters of {chosen.group} again"
    job = ask.jobs.start(
        "redrive", title, chosen.group, ask.user.name, work,
        total=plan.letters, facts={"again": again},
    )  # fmt: skip
    ask.site.desk.forget(("letters", chosen.group))
    return ask.go("/job", id=job.id)


ROUTES: Final = (
    get("/letters", page),
    get("/redrive", redrive_page),
    post("/redrive", redrive),
)
