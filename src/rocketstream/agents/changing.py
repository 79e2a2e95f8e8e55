"""The tools that change something: each previewed first, then applied by the preview's token.

Law: the tools exist only on a server that may write. A preview changes nothing. Applying makes
exactly the change that was shown, or is refused if things have changed since. Every change is in
the audit file (``Admin``). Deleting a topic or a group cannot be taken back, so there is no tool
for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from rocketstream._util.clock import Clock
from rocketstream._util.when import moment_ms
from rocketstream.admin import LetterFilter, RedrivePlan
from rocketstream.admin.aio import Admin
from rocketstream.admin.core.moves import ResetDone, ResetPlan, ResetTarget
from rocketstream.admin.core.steps import ChangePlan
from rocketstream.admin.safety.previews import Previews
from rocketstream.admin.safety.undo import default_undo_directory
from rocketstream.agents import answers, showing
from rocketstream.agents.looking import ROWS_MAX, Group, Moment, TopicName
from rocketstream.agents.text import moment_of
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.protocol.names import retry_topic

REDRIVE_MAX: Final = 10_000
RATE_MAX: Final = 1_000.0

Apply = Callable[[], Awaitable[answers.Applied]]

Despite = Annotated[
    bool,
    Field(
        description="True only when the person you work for has read `problems` of an earlier "
        "preview and wants it all the same."
    ),
]


class Changing:
    """The tools that change something.

    Args:
        admin: makes the changes.
        previews: keeps previews until they are applied.
        clock: the present time, for times relative to now.
    """

    def __init__(self, admin: Admin, previews: Previews[Apply], clock: Clock) -> None:
        self._admin = admin
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
    ) -> answers.Preview:
        """Show where a reset would take a group: from and to per queue, skipped, repeated.

        Changes nothing. Show it to the person you work for; `apply_change` with the token does it.
        """
        plan = await self._admin.reset_plan(group, topic, self._target(to, value))
        return self._reset_preview(f"reset of {group} in {topic}", plan, despite_problems)

    async def preview_undo(
        self,
        undo: Annotated[str, Field(description="`undo` of what a reset answered.", max_length=500)],
        despite_problems: Despite = False,
    ) -> answers.Preview:
        """Show what taking a reset back would do. Changes nothing."""
        folder = default_undo_directory()
        path = folder / Path(undo).name
        if Path(undo).name != undo or not path.is_file():
            raise ConfigurationError(
                f"there is no undo file {undo!r}; a reset's answer names it in `undo`"
            )
        plan = await self._admin.undo(path)
        return self._reset_preview(f"undo by {undo}", plan, despite_problems)

    def _reset_preview(
        self, operation: str, plan: ResetPlan, despite_problems: bool
    ) -> answers.Preview:
        problems = list(plan.problems)
        is_refused = not plan.moves or (bool(problems) and not despite_problems)
        if not plan.moves:
            problems.append("nothing would move: the group is there already")

        async def apply() -> answers.Applied:
            # A caller that accepts problems does not accept a plan that is no longer true.
            done = await self._admin.reset_apply(plan, force=despite_problems, as_shown=True)
            return _reset_done(operation, done)

        return answers.Preview(
            operation=operation,
            what=[
                f"group {plan.group} goes to {plan.target.describe()}: {plan.skipped} messages "
                f"skipped, {plan.repeated} repeated",
                plan.how(),
            ],
            warnings=showing.notes(plan.warnings),
            problems=showing.notes(problems),
            token=None if is_refused else self._previews.keep(apply),
            moves=showing.moves(plan, ROWS_MAX),
            left_out=max(len(plan.rows) - ROWS_MAX, 0),
        )

    def _target(self, to: str, value: str | None) -> ResetTarget:
        if to in ("earliest", "latest"):
            if value is not None:
                raise ConfigurationError(f"to={to} takes no value, and one is given: {value!r}")
            return ResetTarget.earliest() if to == "earliest" else ResetTarget.latest()
        if value is None:
            raise ConfigurationError(f"to={to} takes a value")
        if to == "copy":
            return ResetTarget.copy_of(value)
        try:
            if to == "time":
                now_ms = self._clock.now_ms()
                return ResetTarget.time(moment_ms(value, now_ms, needs_zone=True))
            number = int(value)
        except ValueError as error:
            why = f": {error}" if to == "time" else ""
            raise ConfigurationError(f"value {value!r} cannot be used with to={to}{why}") from None
        return ResetTarget.offset(number) if to == "offset" else ResetTarget.shift(number)

    # --- dead letters ----------------------------------------------------------------------------

    async def preview_redrive(
        self,
        group: Group,
        cause_id: Annotated[
            str | None,
            Field(description="Only letters of this cause, as `dead_letters` names it."),
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
    ) -> answers.Preview:
        """Show which dead letters a redrive would send again, and where. Changes nothing."""
        wanted = LetterFilter(
            cause=cause_id,
            key=key,
            tag=tag,
            since_ms=moment_of("since", since, self._clock.now_ms()),
            until_ms=moment_of("until", until, self._clock.now_ms()),
        )
        to = retry_topic(group) if to_group_only else None
        plan = await self._admin.redrive_plan(group, wanted, to=to, limit=limit)
        operation = f"redrive of {plan.letters} dead letters of {group}"
        problems = list(plan.problems)
        if not plan.letters:
            problems.append("no dead letter is selected that was not sent again already")

        async def apply() -> answers.Applied:
            return await self._redrive(operation, plan, wanted, to, rate)

        places = ", ".join(f"{n} to {t or 'nowhere'}" for t, n in plan.by_topic.items())
        return answers.Preview(
            operation=operation,
            what=[
                f"sends {plan.letters} dead letters again, {rate:g} a second: {places or 'none'}"
            ],
            warnings=showing.notes(
                [f"other redrives kept a place here: {', '.join(plan.earlier)}"]
                if plan.earlier
                else []
            ),
            problems=showing.notes(problems),
            token=None if problems else self._previews.keep(apply),
        )

    async def _redrive(
        self, operation: str, plan: RedrivePlan, wanted: LetterFilter, to: str | None, rate: float
    ) -> answers.Applied:
        now = await self._admin.redrive_plan(plan.group, wanted, to=to, limit=plan.letters)
        if _begins(now) != _begins(plan) or (now.letters, now.by_topic, now.problems) != (
            plan.letters,
            plan.by_topic,
            plan.problems,
        ):
            raise ClientStateError(
                f"the dead letters of {plan.group} are no longer as they were shown: now "
                f"{now.letters} are selected. Preview the redrive again"
            )
        result = await self._admin.redrive(plan.group, wanted, to=to, limit=plan.letters, rate=rate)
        said = [f"{count} sent to {topic}" for topic, count in result.by_topic.items()]
        said += [f"{count} stored with {status}" for status, count in result.odd.items()]
        return answers.Applied(
            operation=operation,
            is_done=result.sent == plan.letters,
            what=showing.notes(said or ["nothing was sent"]),
        )

    # --- settings --------------------------------------------------------------------------------

    async def preview_pause(self, group: Group) -> answers.Preview:
        """Show what pausing a group would do: brokers give its members nothing. Changes nothing."""
        return self._settings_preview(await self._admin.group_pause_plan(group))

    async def preview_resume(self, group: Group) -> answers.Preview:
        """Show what ending the pause of a group would do. Changes nothing."""
        return self._settings_preview(await self._admin.group_resume_plan(group))

    async def preview_topic_create(
        self,
        topic: TopicName,
        queues: Annotated[int, Field(description="On each broker.", ge=1, le=256)] = 8,
    ) -> answers.Preview:
        """Show what making a topic on every broker would do. Changes nothing."""
        return self._settings_preview(await self._admin.topic_create_plan(topic, queues))

    def _settings_preview(self, plan: ChangePlan) -> answers.Preview:
        problems = list(plan.problems)
        if not plan.changes:
            problems.append("nothing would change: it is so already")

        async def apply() -> answers.Applied:
            done = await self._admin.change_apply(plan)
            unknown = [each.step.where for each in done.steps if each.done is None]
            notes = [f"{each.step.where}: {each.note}" for each in done.steps if each.note]
            return answers.Applied(
                operation=plan.operation,
                is_done=not done.differing and not unknown,
                what=showing.notes([f"{len(done.steps)} steps made", *notes]),
                unknown=showing.notes(f"what {where} has now is not known" for where in unknown),
            )

        what = [
            f"{step.kind} {step.name} at {step.where}: "
            + ", ".join(f"{name} {old} -> {new}" for name, old, new in step.differences())
            for step in plan.steps
        ]
        return answers.Preview(
            operation=f"{plan.operation} {plan.name}",
            what=showing.notes(what or ["nothing"]),
            warnings=showing.notes([*plan.warnings, *(f"lost: {each}" for each in plan.losses)]),
            problems=showing.notes(problems),
            token=None if problems else self._previews.keep(apply),
        )

    # --- one message -----------------------------------------------------------------------------

    async def preview_consume_message(
        self,
        group: Group,
        client_id: Annotated[str, Field(description="The member.", max_length=255)],
        topic: TopicName,
        msg_id: Annotated[str, Field(max_length=255)],
    ) -> answers.Preview:
        """Show what making one member consume one message now would do. Changes nothing.

        The member's listener is called with the message; the group's offsets stay as they are.
        """
        plan = await self._admin.consume_message_plan(group, client_id, topic, msg_id)
        operation = f"consumption of {msg_id} by {client_id}"

        async def apply() -> answers.Applied:
            row = await self._admin.consume_message(group, client_id, topic, msg_id)
            said = f"the listener answered {row.result} after {row.spent_ms} ms"
            remark = [] if row.remark is None else [f"it said: {row.remark}"]
            return answers.Applied(
                operation=operation,
                is_done=row.result in ("CR_SUCCESS", "CR_COMMIT"),
                what=showing.notes([said, *remark]),
            )

        return answers.Preview(
            operation=operation,
            what=[
                f"the listener of {showing.name(plan.client_id)} is called with message "
                f"{showing.name(plan.msg_id)} (broker {showing.name(plan.broker_name)}, queue "
                f"{plan.queue_id}, offset {plan.queue_offset}) of {showing.name(plan.topic)}, "
                "besides its normal course"
            ],
            warnings=["it may do its work twice: the message comes in its normal course too"],
            problems=[],
            token=self._previews.keep(apply),
        )

    # --- applying --------------------------------------------------------------------------------

    async def apply_change(
        self,
        token: Annotated[str, Field(description="Of a preview.", min_length=8, max_length=100)],
    ) -> answers.Applied:
        """Make the change a preview showed: once, within ten minutes, and only if it is still
        true.

        Ask the person you work for first, with the preview.
        """
        return await self._previews.take(token)()


def _begins(plan: RedrivePlan) -> dict[object, int]:
    return {queue: begin for queue, (begin, _) in plan.ranges.items()}


def _reset_done(operation: str, done: ResetDone) -> answers.Applied:
    said = [f"{len(done.rows)} queues moved"]
    said += [f"{row.row.queue}: {row.note}" for row in done.rows if row.note]
    if done.left:
        said.append(f"{len(done.left)} queues left alone: the group went past the target by itself")
    unknown = [str(row.row.queue) for row in done.rows if row.moved is None]
    return answers.Applied(
        operation=operation,
        is_done=not done.differing and not unknown,
        what=showing.notes(said),
        undo=None if done.undo_path is None else Path(done.undo_path).name,
        unknown=showing.notes(f"whether {queue} arrived is not known" for queue in unknown),
    )
