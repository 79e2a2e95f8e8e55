"""Changes of a cluster: their options, plan, question, result; one way for every command.

``Admin`` decides which plans are refused, and lists the losses.

Law: every command that changes something takes a ``Change``, so that none forgets the audit file;
no other module asks for confirmation.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from click import BadParameter
from click.exceptions import Exit

from rocketstream.admin.core.words import NONE, plural
from rocketstream.cli.commands import Decorator, asks, audit_file, option, printed, together
from rocketstream.cli.failure import EXIT_FAILED, say
from rocketstream.cli.output import look, print_json, print_line, print_prose, print_table
from rocketstream.cli.tables import Name, shown
from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    from rocketstream.admin import Admin, ChangeDone, ChangePlan, ResetPlan
    from rocketstream.admin.core.steps import Step


@dataclass(frozen=True, slots=True)
class Change:
    """The answers that a command which changes something was given beforehand.

    Attributes:
        namesrv: name servers to ask.
        audit_file: where the change is written down; None is the default file.
        dry_run: only show what would change.
        yes: do not ask.
        force: do it even where it would be refused.
        as_json: print JSON.
    """

    namesrv: str
    audit_file: str | None
    dry_run: bool
    yes: bool
    force: bool
    as_json: bool

    def admin(self, mask: str | None = None) -> Admin:
        """Return an Admin that records its changes.

        Args:
            mask: ``--mask`` of commands that show messages; None takes ROCKETSTREAM_MASK.
        """
        from rocketstream.admin import Admin, AuditLog, Masking

        masking = Masking.from_file(mask) if mask else None
        audit = AuditLog(self.audit_file, face="command line")
        return Admin(self.namesrv, audit=audit, masking=masking)

    def confirm(self, what: Sequence[str]) -> None:
        """Show the changes, a line each, and go on only when the user agrees, or did so before.

        Lines and question go to stderr, so that ``--json`` output stays JSON.

        Raises:
            BadParameter: there is no terminal to ask on; exit code 2.
            ConfigurationError: the user said no; exit code 1.
        """
        for line in what:
            say(shown(line))
        if self.yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise BadParameter(
                "nothing was changed: there is no terminal to ask on; give --yes to change it "
                "without being asked"
            )
        sys.stderr.write("Do it? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ConfigurationError("you did not say yes; nothing was changed")

    def agreed(
        self,
        plan: ChangePlan | ResetPlan,
        *,
        show: Callable[[], None],
        what: Sequence[str],
        nothing: str | None,
        asks: bool = True,
    ) -> bool:
        """Show a plan and ask; return whether it is to be carried out.

        Args:
            show: prints its steps.
            what: the changes, a line each.
            nothing: said of a plan that changes nothing; None for all others.
            asks: False for a plan that only adds something: it is carried out without asking.
        """
        if self.as_json and (self.dry_run or nothing):
            print_json(plan)
            return False
        if not self.as_json:
            show()
        if nothing:
            print_line(nothing)
            return False
        if self.dry_run:
            for line in what:
                print_prose(line)
            print_line("dry run: nothing was changed")
            return False
        if asks and (self.force or not plan.problems):  # a refused plan is not asked about
            self.confirm(what)
        return True

    def finish(self, admin: Admin, plan: ChangePlan, *, asks: bool = True) -> None:
        """Show a plan, ask, carry it out, and show the result; ``asks`` as in ``agreed``."""
        nothing = None if plan.changes else f"{plan.name} is so already: nothing was changed"
        show = functools.partial(_show_steps, plan)
        if not self.agreed(plan, show=show, what=_what(plan), nothing=nothing, asks=asks):
            return
        done = admin.changes.apply(plan, force=self.force)
        _show_done(done, self.as_json)
        if done.differing:
            raise Exit(EXIT_FAILED)


FORCE: Final = "Do it even where it would be refused."
DRY_RUN: Final = "Only show what would change; change nothing."


def changes(
    *, yes: str = "Do it without asking.", dry_run: bool = True, force: str | None = None
) -> Decorator[Any]:
    """Return the options of a command that changes something; it gets them as ``change``.

    Args:
        yes: help of ``--yes``.
        dry_run: whether there is ``--dry-run``.
        force: help of ``--force``; without it there is none.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def call(
            *args: Any,
            namesrv: str,
            audit_file: str | None,
            as_json: bool,
            wide: bool,
            yes: bool,
            dry_run: bool = False,
            force: bool = False,
            **given: Any,
        ) -> None:
            look.wide = wide
            change = Change(namesrv, audit_file, dry_run, yes, force, as_json)
            function(*args, change=change, **given)

        return together(
            *([option("--dry-run", DRY_RUN)] if dry_run else []),
            option("--yes, -y", yes),
            *([option("--force", force)] if force else []),
            audit_file,
            asks,
            printed,
        )(call)

    return decorate


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
    kept = [
        place
        for place, title in enumerate(titles)
        if any(row[place] for row in rows) and (title != "Name" or several)
    ]
    print_table(
        [Name(titles[place]) for place in kept],
        [[row[place] for place in kept] for row in rows],
    )


def _rows(step: Step) -> list[tuple[str, ...]]:
    head = (step.where, str(step.kind), step.name)
    if step.after is None:
        return [(*head, "", "", "")]
    if step.queue is not None:
        what = f"offset {step.queue.topic}:{step.queue.queue_id}"
        return [(*head, what, setting_text(step.before), setting_text(step.after))]
    differing = [each for each in step.differences() if each[0] != "groupName"]
    if step.before is None:
        differing = [each for each in differing if each[0] not in _ALWAYS_DEFAULT or each[2]]
    return [
        (*head, name, setting_text(before, name=name), setting_text(after, name=name))
        for name, before, after in differing
    ]


_ALWAYS_DEFAULT = frozenset({"order", "topicFilterType", "topicSysFlag", "attributes", "brokerId"})
PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2}


def setting_text(value: Any, none: str = NONE, name: str = "") -> str:
    """Return a setting as RocketMQ's tools write it, or the mark for none."""
    if value is None:
        return none
    if name == "perm":
        return next((w.upper() for w, n in PERMISSIONS.items() if n == value), str(value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items()) or NONE
    return str(value)


def _show_done(done: ChangeDone, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    for each in done.steps:
        if each.done is not True:
            say(f"warning: {each.step.kind} {each.step.name} at {each.step.where}: {each.note}")
        elif each.note:
            print_line(f"{each.step.name} at {each.step.where}: {each.note}")
    made = sum(each.done is True for each in done.steps)
    action = done.plan.operation.replace(".", " ")
    print_line(f"{action} {done.plan.name}: {made} of {plural(len(done.steps), 'step')} read back")
