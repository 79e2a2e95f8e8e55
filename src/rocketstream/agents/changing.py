"""The tools that change something: each previewed first, then made when a person has approved it.

Law: the tools exist only on a server that may write. A preview changes nothing; an ``Admin`` that
can is made for one change, with its approval. Exactly the change that was shown is made, once, or
it is refused if things have changed since. Every change is in the audit file, with who approved
it. Deleting a topic or a group cannot be taken back, so there is no tool for it.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from mcp.server.mcpserver import Context
from mcp.types import InputRequiredResult
from pydantic import Field

from rocketstream._util.clock import Clock
from rocketstream._util.unseen import spelled_out
from rocketstream._util.when import moment_ms
from rocketstream.admin import LetterFilter, RedrivePlan
from rocketstream.admin.aio import Admin
from rocketstream.admin.changes.undo import default_undo_directory
from rocketstream.admin.core.moves import (
    ResetDone,
    ResetKind,
    ResetPlan,
    ResetRow,
    ResetTarget,
)
from rocketstream.admin.core.steps import ChangePlan
from rocketstream.admin.safety import Previews
from rocketstream.agents.answers import TEXT_CHARS_MAX, Form, seen
from rocketstream.agents.approval import Approver, DeclinedError
from rocketstream.agents.looking import Group, Moment, TopicName, moment_of
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.names import retry_topic

REDRIVE_MAX: Final = 10_000
RATE_MAX: Final = 1_000.0
SHOWN_MAX: Final = 10
"""Most lines of one kind a person is shown of one change; how many more there are is said."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of a change. Nothing is changed yet; apply_change asks the person you work for.

    Attributes:
        what: the steps that will be made.
        warnings: what to know before.
        problems: what speaks against it. Without a token it cannot be made.
        command: makes the same change; for a person to run.
        token: apply_change takes it: once, within ten minutes.
        moves: how far each queue moves.
    """

    operation: str
    what: tuple[str, ...]
    warnings: tuple[str, ...]
    problems: Annotated[tuple[str, ...], Form.WHOLE]
    command: str
    token: str | None = None
    moves: tuple[ResetRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a change.

    Attributes:
        is_done: whether all of it is as it was shown.
        what: the steps that were made.
        undo: preview_undo takes it.
        remark: what the listener raised.
    """

    operation: str
    is_done: bool
    what: tuple[str, ...]
    undo: str | None = None
    remark: str | None = None
    unknown: tuple[str, ...] = ()


Apply = Callable[[Admin], Awaitable[Applied]]

Despite = Annotated[
    bool,
    Field(
        description="True only when the person you work for has read `problems` of an earlier "
        "preview and wants it all the same."
    ),
]


@dataclass(frozen=True, slots=True)
class Shown:
    """A change that was shown, and what makes it, or refuses where things have changed since."""

    preview: Preview
    apply: Apply


class Changing:
    """The tools that change something.

    Args:
        admin: looks at things as they are; it needs no right to change them.
        writer: makes the Admin of one change, from who approved it; closed here.
        namesrv: the name servers, for the commands a person may run instead.
        previews: keeps changes from their preview to their end.
    """

    def __init__(
        self,
        admin: Admin,
        writer: Callable[[str], Admin],
        approver: Approver,
        namesrv: str,
        previews: Previews[Shown],
        clock: Clock,
    ) -> None:
        self._admin = admin
        self._writer = writer
        self.approver = approver
        self._namesrv = namesrv
        self._previews = previews
        self._clock = clock

    # --- resets ----------------------------------------------------------------------------------

    async def preview_reset(
        self,
        group: Group,
        topic: TopicName,
        to: Annotated[
            Literal["earliest", "latest", "time", "offset", "shift", "copy"],
            Field(
                description="earliest: the oldest message kept; latest: the end, what waits is "
                "skipped; time, offset, shift (messages forward, or back if negative) and copy "
                "(from another group) take `value`."
            ),
        ],
        value: Annotated[
            str | None,
            Field(
                description="For time 2026-05-01T12:00:00Z or -15m; for offset and shift a whole "
                "number; for copy the other group.",
                max_length=255,
            ),
        ] = None,
        despite_problems: Despite = False,
    ) -> Preview:
        """Show where a reset would take a group: from and to per queue, skipped, repeated.

        Changes nothing: `apply_change` with the token does, when the person you work for agrees.
        """
        target = self._target(to, value)
        plan = await self._admin.changes.reset_plan(group, topic, target)
        goal = target.value if target.group is None else target.group
        option = _GOALS[to] + ("" if goal is None else f"={goal}")
        command = ("group", "reset", group, topic, option)
        return self._reset_preview(f"reset of {group} in {topic}", plan, command, despite_problems)

    async def preview_undo(
        self,
        undo: Annotated[str, Field(description="`undo` of what a reset answered.", max_length=500)],
        despite_problems: Despite = False,
    ) -> Preview:
        """Show what taking a reset back would do. Changes nothing."""
        folder = default_undo_directory()
        path = folder / Path(undo).name
        if Path(undo).name != undo or not path.is_file():
            raise ConfigurationError(
                f"there is no undo file {undo!r}; a reset's answer names it in `undo`"
            )
        plan = await self._admin.changes.undo(path)
        command = ("group", "undo", str(path))
        return self._reset_preview(f"undo by {undo}", plan, command, despite_problems)

    def _reset_preview(
        self, operation: str, plan: ResetPlan, command: Sequence[str], despite_problems: bool
    ) -> Preview:
        nothing = [] if plan.moves else ["nothing would move: the group is there already"]

        async def apply(admin: Admin) -> Applied:
            # A person who accepts problems does not accept a plan that is no longer true.
            done = await admin.changes.reset_apply(plan, force=despite_problems, as_shown=True)
            return _reset_done(operation, done)

        return self._preview(
            operation,
            [
                f"group {plan.group} goes to {plan.target.describe()}: {plan.skipped} messages "
                f"skipped, {plan.repeated} repeated",
                plan.how(),
            ],
            [*command, "--force"] if despite_problems else command,
            apply,
            warnings=plan.warnings,
            problems=[*plan.problems, *nothing],
            is_refused=bool(nothing) or (bool(plan.problems) and not despite_problems),
            moves=plan.rows,
        )

    def _target(self, to: str, value: str | None) -> ResetTarget:
        if (value is None) is not (to in ("earliest", "latest")):
            what = "a value" if value is None else f"no value, and one is given: {value!r}"
            raise ConfigurationError(f"to={to} takes {what}")
        found: int | str | None = value
        try:
            if value is not None and to == "time":
                found = moment_ms(value, self._clock.now_ms(), needs_zone=True)
            elif value is not None and to != "copy":
                found = int(value)
        except ValueError as error:
            why = f": {error}" if to == "time" else ""
            raise ConfigurationError(f"value {value!r} cannot be used with to={to}{why}") from None
        return ResetTarget.of(ResetKind(to), found)

    # --- dead letters ----------------------------------------------------------------------------

    async def preview_redrive(
        self,
        group: Group,
        cause_id: Annotated[
            str | None,
            Field(description="Only letters of this cause: its `id` in `dead_letters`."),
        ] = None,
        key: Annotated[str | None, Field(description="Only with this key.")] = None,
        tag: Annotated[str | None, Field(description="Only with this tag.")] = None,
        since: Moment = None,
        until: Moment = None,
        to_group_only: Annotated[
            bool,
            Field(
                description="True: only this group consumes them again (its retry topic). False: "
                "back to the topic each came from, where every group gets them."
            ),
        ] = True,
        limit: Annotated[int, Field(ge=1, le=REDRIVE_MAX)] = 100,
        rate: Annotated[float, Field(description="A second.", gt=0, le=RATE_MAX)] = 50.0,
    ) -> Preview:
        """Show which dead letters a redrive would send again, and where. Changes nothing."""
        wanted = LetterFilter(
            cause=cause_id,
            key=key,
            tag=tag,
            since_ms=moment_of("since", since, self._clock.now_ms()),
            until_ms=moment_of("until", until, self._clock.now_ms()),
        )
        to = retry_topic(group) if to_group_only else None
        plan = await self._admin.letters.redrive_plan(group, wanted, to=to, limit=limit)
        operation = f"redrive of {plan.letters} dead letters of {group}"
        problems = list(plan.problems)
        if not plan.letters:
            problems.append("no dead letter is selected that was not sent again already")

        async def apply(admin: Admin) -> Applied:
            return await _redrive(admin, operation, plan, rate)

        command = ["dlq", "redrive", group, f"--limit={limit}", f"--rate={rate:g}"]
        if to_group_only:
            command.append("--to-group")
        selected = {
            "cause": cause_id, "key": key, "tag": tag,
            "since": wanted.since_ms, "until": wanted.until_ms,
        }  # fmt: skip
        command += [f"--{name}={each}" for name, each in selected.items() if each is not None]
        places = ", ".join(f"{n} to {t or 'nowhere'}" for t, n in plan.by_topic.items())
        return self._preview(
            operation,
            [f"sends {plan.letters} dead letters again, {rate:g} a second: {places or 'none'}"],
            command,
            apply,
            warnings=(
                [f"other redrives kept a place here: {', '.join(plan.earlier)}"]
                if plan.earlier
                else []
            ),
            problems=problems,
        )

    # --- settings --------------------------------------------------------------------------------

    async def preview_pause(self, group: Group) -> Preview:
        """Show what pausing a group would do: brokers give its members nothing. Changes nothing."""
        plan = await self._admin.changes.group_pause_plan(group)
        return self._settings_preview(plan, "group", "pause", group)

    async def preview_resume(self, group: Group) -> Preview:
        """Show what ending the pause of a group would do. Changes nothing."""
        plan = await self._admin.changes.group_resume_plan(group)
        return self._settings_preview(plan, "group", "resume", group)

    async def preview_topic_create(
        self,
        topic: TopicName,
        queues: Annotated[int, Field(description="On each broker.", ge=1, le=256)] = 8,
    ) -> Preview:
        """Show what making a topic on every broker would do. Changes nothing."""
        plan = await self._admin.changes.topic_create_plan(topic, queues)
        return self._settings_preview(plan, "topic", "create", topic, f"--queues={queues}")

    def _settings_preview(self, plan: ChangePlan, *command: str) -> Preview:
        problems = list(plan.problems)
        if not plan.changes:
            problems.append("nothing would change: it is so already")

        async def apply(admin: Admin) -> Applied:
            done = await admin.changes.apply(plan)
            unknown = [each.step.where for each in done.steps if each.done is None]
            notes = [f"{each.step.where}: {each.note}" for each in done.steps if each.note]
            return Applied(
                operation=plan.operation,
                is_done=not done.differing and not unknown,
                what=(f"{len(done.steps)} steps made", *notes),
                unknown=tuple(f"what {where} has now is not known" for where in unknown),
            )

        what = [
            f"{step.kind} {step.name} at {step.where}: "
            + ", ".join(f"{name} {old} -> {new}" for name, old, new in step.differences())
            for step in plan.steps
        ]
        return self._preview(
            f"{plan.operation} {plan.name}",
            what or ["nothing"],
            command,
            apply,
            warnings=[*plan.warnings, *(f"lost: {each}" for each in plan.losses)],
            problems=problems,
        )

    # --- one message -----------------------------------------------------------------------------

    async def preview_consume_message(
        self,
        group: Group,
        client_id: Annotated[str, Field(description="The member.", max_length=255)],
        topic: TopicName,
        msg_id: Annotated[str, Field(max_length=255)],
    ) -> Preview:
        """Show what making one member consume one message now would do. Changes nothing.

        The member's listener is called with the message; the group's offsets stay as they are.
        """
        plan = await self._admin.messages.consume_plan(group, client_id, topic, msg_id)
        operation = f"consumption of {msg_id} by {client_id}"

        async def apply(admin: Admin) -> Applied:
            row = await admin.messages.consume(
                group, client_id, topic, msg_id, stored_ms=plan.stored_ms
            )
            said = f"the listener answered {row.result} after {row.spent_ms} ms"
            return Applied(
                operation=operation,
                is_done=row.result in ("CR_SUCCESS", "CR_COMMIT"),
                what=(said,),
                remark=row.remark,
            )

        return self._preview(
            operation,
            [
                f"the listener of {plan.client_id} is called with message {plan.msg_id} (broker "
                f"{plan.broker_name}, queue {plan.queue_id}, offset {plan.queue_offset}) of "
                f"{plan.topic}, besides its normal course"
            ],
            ("message", "consume", topic, msg_id, f"--group={group}", f"--client={client_id}"),
            apply,
            warnings=["it may do its work twice: the message comes in its normal course too"],
        )

    def _preview(
        self,
        operation: str,
        what: Iterable[str],
        command: Sequence[str],
        apply: Apply,
        *,
        warnings: Iterable[str] = (),
        problems: Iterable[str] = (),
        is_refused: bool | None = None,
        moves: tuple[ResetRow, ...] = (),
    ) -> Preview:
        """Return the preview of a change, and keep the change where nothing speaks against it."""
        run = shlex.join(["rocketstream", *command, "--namesrv", self._namesrv])
        against = tuple(problems)
        preview = Preview(operation, tuple(what), tuple(warnings), against, run, moves=moves)
        if bool(against) if is_refused is None else is_refused:
            return preview
        token = self._previews.keep(Shown(preview, apply))
        return replace(preview, token=token)

    # --- applying --------------------------------------------------------------------------------

    async def apply_change(
        self,
        token: Annotated[str, Field(description="Of a preview.", min_length=8, max_length=100)],
        context: Context[Any, Any],
    ) -> Applied | InputRequiredResult:
        """Make the change a preview showed, after the person you work for has approved it.

        They are asked here, outside of your conversation, and have until ten minutes after the
        preview. The change is made once, and only if things are still as they were shown.
        """
        shown, left_s = self._previews.find(token), self._previews.left_s(token)
        try:
            approval = await self.approver.ask(
                token, _text_of(shown.preview), shown.preview.command, left_s, context
            )
        except DeclinedError:
            self._previews.take(token)
            raise
        if isinstance(approval, InputRequiredResult):
            return approval
        # The same change may have been approved in another call meanwhile: only one makes it.
        self._previews.take(token)
        async with self._writer(approval) as admin:
            return await shown.apply(admin)


_GOALS: Final = {
    "earliest": "--to-earliest",
    "latest": "--to-latest",
    "time": "--to-time",
    "offset": "--to-offset",
    "shift": "--shift",
    "copy": "--copy-of",
}


def _text_of(preview: Preview) -> str:
    """Return a change as the person who approves it sees it."""
    moves = [
        f"{each.topic} queue {each.queue_id} at {each.broker_name}: {each.from_offset} -> "
        f"{each.to_offset}"
        for each in preview.moves
    ]
    parts = [
        preview.operation,
        *_some(preview.what, "- "),
        *_some(moves, "- "),
        *_some(preview.warnings, "Warning: "),
        *_some(preview.problems, "AGAINST IT: "),
    ]
    command = f"The same as: {seen(preview.command, TEXT_CHARS_MAX)}"
    # A line break of an argument, or of what others wrote, begins no line of the question.
    return "\n".join(spelled_out(line) for line in [*map(seen, parts), command])


def _some(lines: Sequence[str], mark: str) -> list[str]:
    rest = [f"{mark}and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else []
    return [mark + each for each in lines[:SHOWN_MAX]] + rest


async def _redrive(admin: Admin, operation: str, plan: RedrivePlan, rate: float) -> Applied:
    result = await admin.letters.redrive(
        plan.group, plan.wanted, to=plan.to, rate=rate, as_shown=plan
    )
    said = [f"{count} sent to {topic}" for topic, count in result.by_topic.items()]
    said += [f"{count} stored with {status}" for status, count in result.odd.items()]
    is_done = result.sent == plan.letters
    if not is_done:
        said.append(f"{plan.letters - result.sent} of those shown were sent by others meanwhile")
    return Applied(operation, is_done, tuple(said))


def _reset_done(operation: str, done: ResetDone) -> Applied:
    said = [f"{len(done.rows)} queues moved"]
    said += [f"{row.row.queue}: {row.note}" for row in done.rows if row.note]
    if done.left:
        said.append(f"{len(done.left)} queues left alone: the group went past the target by itself")
    unknown = [str(row.row.queue) for row in done.rows if row.moved is None]
    return Applied(
        operation=operation,
        is_done=not done.differing and not unknown,
        what=tuple(said),
        undo=None if done.undo_path is None else Path(done.undo_path).name,
        unknown=tuple(f"whether {queue} arrived is not known" for queue in unknown),
    )
