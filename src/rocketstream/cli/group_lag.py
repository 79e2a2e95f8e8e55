"""``rocketstream group lag``: each queue of a group, further waiting messages, bounds for scripts.

The only decision here is the exit code its user asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from rocketstream.cli.declare import Argument, Commands, Exit, Option
from rocketstream.cli.failure import EXIT_EXCEEDED, EXIT_FAILED, say
from rocketstream.cli.group_list import lost, waits
from rocketstream.cli.looking import groups_of
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import (
    NONE,
    Column,
    as_json,
    moment,
    number,
    plural,
    print_json,
    print_prose,
    print_table,
    shown,
    span,
)
from rocketstream.cli.start import parse_span

if TYPE_CHECKING:
    from rocketstream.admin.state import GroupState, QueueState

Group = Annotated[
    str | None, Argument(metavar="GROUP", help="The group; all groups when left out.")
]
TopicOnly = Annotated[str | None, Option("--topic", "-t", help="Only the queues of this topic.")]
MaxLag = Annotated[
    int | None,
    Option(
        "--max",
        min=0,
        metavar="N",
        help="Exit with 3 where more messages than this wait for a group.",
    ),
]
MaxAge = Annotated[
    int | None,
    Option(
        "--max-age",
        parser=parse_span,
        metavar="SPAN",
        help="Exit with 3 where a message has waited for longer: 90s, 5m, 2h, 1d.",
    ),
]


def add_to(commands: Commands) -> None:
    """Add the command."""
    example = "Example: `rocketstream group lag billing --max 1000 --max-age 5m`"
    commands.add(lag, epilog=example)


def lag(
    group: Group = None,
    topic: TopicOnly = None,
    max_: MaxLag = None,
    max_age: MaxAge = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Show per queue how many messages and how much time a group is behind.

    Lag: messages kept and not consumed. Time lag: how long the next of them has been stored. Last
    consumed: when the last consumed message was stored. Of one group with tags or a condition the
    messages it selects are counted.

    Exit codes: 0; 3 where a bound of --max or --max-age is exceeded; 1 where the bounded figure is
    unknown.
    """
    from rocketstream.admin.groups import lag_rows

    with groups_of(namesrv) as admin:
        if group is not None:
            states = [admin.groups.state(group, topic)]
        else:
            states = admin.groups.states(topic)
    if as_json_:
        print_json([as_json(row) for state in states for row in lag_rows(state)])
    else:
        print_states(states, named=group is None)
    _judge(states, max_, max_age)


def print_states(states: Sequence[GroupState], *, named: bool) -> None:
    """Print the queues of groups as a table, and further remarks on each group."""
    from rocketstream.admin.state import QueueKind

    kinds = (QueueKind.TOPIC, QueueKind.RETRY)
    queues = [(state, queue) for state in states for queue in state.of_kind(*kinds)]
    filtered = any(queue.matching is not None for _, queue in queues)
    expired = any(queue.expired for _, queue in queues)
    owners = {queue.client_id for _, queue in queues}
    several = len(owners - {None}) > 1 or named
    columns = [
        *([Column("Group", keep=True)] if named else []),
        Column("Topic", keep=True),
        Column("Broker", keep=True, importance=7),
        Column("Queue", number=True),
        Column("Broker offset", number=True, importance=4),
        Column("Committed", number=True, importance=5),
        Column("Lag", number=True, colour=waits),
        *([Column("Wanted", number=True, colour=waits)] if filtered else []),
        *([Column("Expired", number=True, importance=8, colour=lost)] if expired else []),
        Column("Time lag", number=True, importance=8),
        Column("Consumed up to", keep=True, importance=3),
        *([Column("Owner", keep=True, importance=6)] if several else []),
    ]
    cells = [
        _cells(state, queue, named, filtered, expired)[: len(columns)] for state, queue in queues
    ]
    print_table(columns, cells, footer=_footer(queue for _, queue in queues))
    if not several and owners - {None}:
        print_prose(_owned([queue for _, queue in queues]))
    for state in states:
        for line in about(state):
            print_prose(f"{state.group}: {line}" if named else line)


def _owned(queues: Sequence[QueueState]) -> str:
    """Return who owns the queues, if it is one member: a sentence fits where a column does not."""
    owner = next((queue.client_id for queue in queues if queue.client_id), "")
    owned = sum(queue.client_id is not None for queue in queues)
    which = "all queues" if owned == len(queues) else f"{owned} of {plural(len(queues), 'queue')}"
    return f"{owner} owns {which}"


def about(state: GroupState) -> list[str]:
    """Return the remarks on a group besides its queues, a sentence each."""
    lines = []
    for queue in state.queues:
        if queue.error is not None:
            where = f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"
            lines.append(f"{where}: {queue.error}")
    lines = [*dict.fromkeys(state.errors), *lines]
    if state.expired:
        lines.append(f"{plural(state.expired, 'message')} expired: deleted before it consumed them")
    if state.retrying:
        lines.append(f"{plural(state.retrying, 'message')} in its retry topic, to be tried again")
    if state.delayed:
        least = "" if state.delayed_is_exact else "at least "
        verb = "waits" if state.delayed == 1 else "wait"
        lines.append(
            f"{least}{plural(state.delayed, 'message')} that failed {verb} for the next try"
        )
    if state.dead_letters:
        lines.append(
            f"{plural(state.dead_letters, 'dead letter')}: given up, see "
            f"`rocketstream dlq causes {shown(state.group)}`"
        )
    if state.message_model == "BROADCASTING":
        lines.append("broadcasting: each member keeps offsets of its own, brokers know none")
    if state.members is not None and not state.members:
        lines.append("nobody is connected")
    return lines


def _cells(
    state: GroupState, queue: QueueState, named: bool, filtered: bool, expired: bool
) -> tuple[str, ...]:
    return (
        *([state.group] if named else []),
        queue.topic,
        queue.broker_name,
        str(queue.queue_id),
        number(queue.max_offset),
        NONE if queue.committed_offset is None else number(queue.committed_offset),
        number(queue.lag),
        *([_wanted(queue)] if filtered else []),
        *([NONE if queue.expired is None else number(queue.expired)] if expired else []),
        span(queue.time_lag_ms(state.taken_ms)),
        moment(queue.last_consumed_ms),
        queue.client_id or NONE,
    )


def _wanted(queue: QueueState) -> str:
    if queue.matching is None or queue.matching_is_exact:
        return number(queue.waiting)
    low, high = queue.matching_range or (queue.matching, queue.matching)
    return f"~{queue.matching:,} ({low:,} to {high:,})"


def _footer(queues: Iterable[QueueState]) -> str:
    found = list(queues)
    known = [queue.lag for queue in found if queue.lag is not None]
    unknown = len(found) - len(known)
    total = number(sum(max(lag, 0) for lag in known)) if known or not found else number(None)
    footer = f"total lag {total} in {plural(len(found), 'queue')}"
    if any(queue.matching is not None for queue in found):
        wanted = sum(queue.waiting or 0 for queue in found)
        about_ = "" if all(queue.matching_is_exact for queue in found) else "about "
        footer += f", of which its filter wants {about_}{number(wanted)}"
    untold = sum(queue.lag is None and queue.error is None for queue in found)
    if untold:
        footer += f"; {plural(untold, 'queue')} without a committed offset not counted"
    if unknown > untold:
        footer += f"; {plural(unknown - untold, 'queue')} not known"
    return footer


def _judge(states: Iterable[GroupState], max_: int | None, max_age_ms: int | None) -> None:
    """End with the exit code that the bounds call for."""
    exceeded, unknown = [], []
    for state in states:
        if max_ is not None:
            waiting = state.waiting
            if waiting is not None and waiting > max_:
                exceeded.append(f"{state.group}: {waiting:,} messages wait, over {max_:,}")
            elif waiting is None or state.queues_unknown or state.errors:
                unknown.append(state.group)
        if max_age_ms is not None:
            age_ms = state.time_lag_ms
            if age_ms is not None and age_ms > max_age_ms:
                exceeded.append(
                    f"{state.group}: a message waits for {span(age_ms)}, over {span(max_age_ms)}"
                )
            elif age_ms is None or state.ages_unknown or state.errors:
                unknown.append(state.group)
    for line in exceeded:
        say(f"exceeded: {shown(line)}")
    if not exceeded and unknown:
        names = ", ".join(dict.fromkeys(unknown))
        say(f"error: whether the bound is exceeded is not known for {shown(names)}")
    if exceeded or unknown:
        raise Exit(EXIT_EXCEEDED if exceeded else EXIT_FAILED)
