"""A ``ChangePlan`` in the terminal: shown, confirmed, carried out, reported.

``Admin`` decides which plans are refused, and lists the losses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocketstream.cli.confirm import confirm
from rocketstream.cli.declare import BadParameter, Exit
from rocketstream.cli.failure import EXIT_FAILED, say
from rocketstream.cli.output import (
    NONE,
    Column,
    plural,
    print_json,
    print_line,
    print_prose,
    print_table,
)

if TYPE_CHECKING:
    from rocketstream.admin import Admin, ChangeDone, ChangePlan
    from rocketstream.admin.core.steps import Step


def finish(
    admin: Admin,
    plan: ChangePlan,
    *,
    dry_run: bool,
    yes: bool,
    force: bool,
    as_json_: bool,
    asks: bool = True,
) -> None:
    """Show a plan, ask, carry it out, and show the result.

    Args:
        admin: carries it out.
        plan: the plan.
        dry_run: only show it.
        yes: do not ask.
        force: also with problems.
        as_json_: print JSON.
        asks: False for a plan that only adds something: it is carried out without asking.
    """
    if dry_run and as_json_:
        print_json(plan_json(plan))
        return
    if not as_json_:
        _show_steps(plan)
    if not plan.changes:
        if as_json_:
            print_json(plan_json(plan))
        else:
            print_line(f"{plan.name} is so already: nothing was changed")
        return
    if dry_run:
        for line in _what(plan):
            print_prose(line)
        print_line("dry run: nothing was changed")
        return
    if not (plan.problems and not force):  # a refused plan is not asked about
        confirm(_what(plan) if asks else [], yes or not asks)
    done = admin.changes.apply(plan, force=force)
    _show_done(done, as_json_)
    if done.differing:
        raise Exit(EXIT_FAILED)


def _what(plan: ChangePlan) -> list[str]:
    """Return what will be done, a line each."""
    action = plan.operation.replace(".", " ")
    return [
        f"{action} {plan.name}: {plural(len(plan.steps), 'step')}",
        *(f"lost: {each}" for each in plan.losses),
        *(f"warning: {each}" for each in plan.warnings),
        *(f"problem: {each}" for each in plan.problems),
    ]


def _show_steps(plan: ChangePlan) -> None:
    """Show what each step changes; columns that would say nothing are left out."""
    rows = [row for step in plan.steps for row in _rows(step)]
    if not rows:
        return
    titles = ("Where", "What", "Name", "Setting", "Before", "After")
    several = len({row[2] for row in rows}) > 1 or rows[0][2] != plan.name
    shown = [
        place
        for place, title in enumerate(titles)
        if any(row[place] for row in rows) and (title != "Name" or several)
    ]
    print_table(
        [Column(titles[place], keep=True) for place in shown],
        [[row[place] for place in shown] for row in rows],
    )


def _rows(step: Step) -> list[tuple[str, ...]]:
    head = (step.where, str(step.kind), step.name)
    if step.after is None:
        return [(*head, "", "", "")]
    if step.queue is not None:
        what = f"offset {step.queue.topic}:{step.queue.queue_id}"
        return [(*head, what, setting_text(step.before), setting_text(step.after))]
    shown = [each for each in step.differences() if each[0] != "groupName"]
    if step.before is None:
        shown = [each for each in shown if each[0] not in _ALWAYS_DEFAULT or each[2]]
    return [
        (*head, name, setting_text(before), setting_text(after)) for name, before, after in shown
    ]


_ALWAYS_DEFAULT = frozenset({"order", "topicFilterType", "topicSysFlag", "attributes", "brokerId"})


def setting_text(value: Any, none: str = NONE) -> str:
    """Return a setting as RocketMQ's tools write it, or the mark for none."""
    if value is None:
        return none
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items()) or NONE
    return str(value)


def split_pair(option: str, text: str) -> tuple[str, str]:
    """Return the name and the value of ``NAME=VALUE``.

    Raises:
        BadParameter: it is not such a pair.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadParameter(f"{option} is {text!r}; it takes NAME=VALUE")
    return name, value


def _show_done(done: ChangeDone, as_json_: bool) -> None:
    if as_json_:
        print_json(done_json(done))
        return
    for each in done.steps:
        if each.done is not True:
            say(f"warning: {each.step.kind} {each.step.name} at {each.step.where}: {each.note}")
        elif each.note:
            print_line(f"{each.step.name} at {each.step.where}: {each.note}")
    made = sum(each.done is True for each in done.steps)
    action = done.plan.operation.replace(".", " ")
    print_line(f"{action} {done.plan.name}: {made} of {plural(len(done.steps), 'step')} read back")


def plan_json(plan: ChangePlan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {
        "operation": plan.operation,
        "name": plan.name,
        "losses": list(plan.losses),
        "warnings": list(plan.warnings),
        "problems": list(plan.problems),
        "steps": [_step_json(step) for step in plan.steps],
    }


def done_json(done: ChangeDone) -> dict[str, Any]:
    """Return the result of a plan as JSON values."""
    return {
        "operation": done.plan.operation,
        "name": done.plan.name,
        "steps": [
            {**_step_json(each.step), "done": each.done, "note": each.note} for each in done.steps
        ],
    }


def _step_json(step: Step) -> dict[str, Any]:
    queue = step.queue
    return {
        "step": str(step.kind),
        "where": step.where,
        "name": step.name,
        "topic": queue.topic if queue is not None else None,
        "queueId": queue.queue_id if queue is not None else None,
        "before": dict(step.before) if isinstance(step.before, dict) else step.before,
        "after": dict(step.after) if isinstance(step.after, dict) else step.after,
    }
