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
from rocketstream.dashboard.site import Ask, PageError, get, number, post, time_ms, tried

CAUSES_KEPT_MS: Final = 5_000
FIELDS: Final = (
    "group", "cause", "where", "tag", "key", "origin", "since", "until", "to", "limit", "rate",
)  # fmt: skip
DEFAULT_RATE: Final = "100"


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan, and how it was asked for.

    Attributes:
        fields: the form's fields as entered, to be shown again.
        rate: letters a second; None sends as fast as the brokers accept them.
    """

    fields: dict[str, str]
    rate: float | None
    plan: RedrivePlan


async def page(ask: Ask) -> Response:
    """Return the page of groups with dead letters, or with a group the page of its causes."""
    update = ask.update()
    having = [
        (state, update.verdict_of(name))
        for name, state in update.groups.items()
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
    fields = {name: ask.value(name) for name in FIELDS}
    preview, problem, code = None, None, 200
    if ask.value("look"):
        preview, problem, code = await tried(_preview(ask, group))
    else:
        fields["rate"] = fields["rate"] or DEFAULT_RATE
    return ask.show(
        "redrive.html", code, title=f"Redrive {group}", group=group, fields=fields,
        plan=preview.plan if preview is not None else None, problem=problem,
        plan_id=ask.offer(preview) if preview is not None else None,
        preview=limits.DASHBOARD_PREVIEW_CHARS, retry=f"%RETRY%{group}",
    )  # fmt: skip


async def _preview(ask: Ask, group: str) -> Preview:
    """Ask for the plan of the selection in the address; changes nothing.

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
    wanted = LetterFilter(
        since_ms=time_ms("from", found["since"]),
        until_ms=time_ms("until", found["until"]),
        **{name: found[name] or None for name in ("tag", "key", "origin", "cause", "where")},
    )
    limit = number("the limit", found["limit"])
    plan = await ask.site.desk.ask(
        lambda admin: admin.letters.redrive_plan(group, wanted, to=found["to"] or None, limit=limit)
    )
    return Preview(found, rate, plan)


async def redrive(ask: Ask) -> Response:
    """Send the letters that were shown, and none that came since."""
    preview = ask.accepted(Preview)
    plan = preview.plan
    if plan.problems:
        raise PageError(409, f"not done: {'; '.join(plan.problems)}")

    def work(admin: Admin, job: Job) -> Any:
        def sent(*_: object) -> None:
            job.done += 1

        return admin.letters.redrive(
            plan.group,
            plan.wanted,
            to=plan.to,
            limit=number("the limit", preview.fields["limit"]),
            as_shown=plan,
            rate=preview.rate,
            on_sent=sent,
            should_stop=job.stop.is_set,
        )

    again = ask.site.link("/redrive", **{**preview.fields, "look": "1"})
    title = f"Send dead letters of {plan.group} again"
    job = ask.jobs.start(
        "redrive", title, plan.group, ask.user.name, work,
        total=plan.letters, facts={"again": again},
    )  # fmt: skip
    ask.site.desk.forget(("letters", plan.group))
    return ask.go("/job", id=job.id)


ROUTES: Final = (
    get("/letters", page),
    get("/redrive", redrive_page),
    post("/redrive", redrive),
)
