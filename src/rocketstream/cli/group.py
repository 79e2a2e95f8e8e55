"""``rocketstream group list|lag|why|members|running-info``: groups, and why they are behind.

The only decision here is the exit code that a caller's bounds of lag ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from click.exceptions import Exit

from rocketstream.admin.core.words import (
    NONE,
    UNKNOWN,
    moment,
    number,
    per_second,
    plural,
    span,
    word,
)
from rocketstream.admin.core.words import waits as messages_wait
from rocketstream.cli.commands import (
    SPAN,
    Commands,
    Watched,
    Whole,
    argument,
    looking,
    names,
    option,
    shows,
)
from rocketstream.cli.commands import group as group_argument
from rocketstream.cli.failure import EXIT_EXCEEDED, EXIT_FAILED, say
from rocketstream.cli.output import (
    json_of,
    print_fields,
    print_json,
    print_line,
    print_prose,
    render,
    room,
)
from rocketstream.cli.tables import Column, Count, Name, fold, shown
from rocketstream.model import MessageQueue

if TYPE_CHECKING:
    from rocketstream.admin.rows import RunningInfoRow, RunningQueueRow
    from rocketstream.admin.state import Cause, GroupState, QueueState, WhyReport

    Lags = Mapping[MessageQueue, int | None]

_CHANGES: Final = (
    "reset",
    "clone",
    "undo",
    "settings",
    "create",
    "update",
    "pause",
    "resume",
    "delete",
)
group: Commands = Commands(
    "group",
    help="Consumer groups and how far behind they are.",
    later={name: f"group_changes:{name}" for name in _CHANGES},
)
WIDTH_MAX = 100
"""Prose is not drawn wider than this, however wide the terminal."""


# --- list -----------------------------------------------------------------------------------------


@group.command("list", cls=Watched, epilog="Example: `rocketstream group list --json`")
@shows(watch=True)
def list_groups(namesrv: str, as_json: bool) -> None:
    """List the consumer groups: lag in messages and time, retries, dead letters, members.

    Lag counts what waits in the topics and in the retry topic. Retrying: in the retry topic, or
    failed and waiting for its delay. Expired: deleted before it was consumed.
    """
    with looking(namesrv) as admin:
        rows = admin.groups.all()
    columns = (
        Name("Group", lambda row: row.group),
        Count("Lag", _lag_of, colour=waits),
        Count(
            "Time lag",
            lambda row: NONE if _has_nothing(row) else span(row.time_lag_ms),
            importance=8,
        ),
        Count("Retrying", retrying, importance=7, colour=waits),
        Count("Dead letters", lambda row: number(row.dead_letters), importance=8, colour=lost),
        Count("Expired", lambda row: number(row.expired, NONE), importance=5, colour=lost),
        Count("Members", lambda row: number(row.member_count), importance=6),
        Column("Model", lambda row: row.message_model or NONE, importance=2),
        Column("Topics", lambda row: ", ".join(row.topics) or NONE, importance=3),
    )
    render(rows, columns, as_json, footer=plural(len(rows), "group"))
    for why_not in dict.fromkeys(error for row in rows for error in row.errors):
        if not as_json:
            print_prose(f"not known: {why_not}")


def waits(cell: str) -> str | None:
    """Return the colour of a count of messages that wait."""
    return None if cell in ("0", NONE) else "yellow"


def lost(cell: str) -> str | None:
    """Return the colour of a count of messages that are lost to a group unless somebody acts."""
    return None if cell in ("0", NONE) else "red"


def retrying(row: GroupState) -> str:
    """Return how many messages will be tried again, ``12+`` where there may be more."""
    if row.retrying is None and row.delayed is None:
        return UNKNOWN
    exact = row.delayed_is_exact and row.retrying is not None and row.delayed is not None
    return number((row.retrying or 0) + (row.delayed or 0)) + ("" if exact else "+")


def _has_nothing(row: GroupState) -> bool:
    return row.lag is None and not row.queues_unknown and not row.errors


def _lag_of(row: GroupState) -> str:
    lag = NONE if _has_nothing(row) else number(row.lag)
    if row.queues_unknown and row.lag is not None:
        lag += f" + {plural(row.queues_unknown, 'queue')} unknown"
    return lag


# --- lag ------------------------------------------------------------------------------------------


@group.command(
    cls=Watched, epilog="Example: `rocketstream group lag billing --max 1000 --max-age 5m`"
)
@argument("[GROUP]", "The group; all groups when left out.", shell_complete=names("groups"))
@option("--topic, -t TEXT", "Only the queues of this topic.", shell_complete=names("topics"))
@option(
    "--max N", "Exit with 3 where more messages than this wait for a group.", Whole(0), to="max_"
)
@option(
    "--max-age SPAN", "Exit with 3 where a message has waited for longer: 90s, 5m, 2h, 1d.", SPAN
)
@shows(watch=True)
def lag(
    group: str | None,
    topic: str | None,
    max_: int | None,
    max_age: int | None,
    namesrv: str,
    as_json: bool,
) -> None:
    """Show per queue how many messages and how much time a group is behind.

    Lag: messages kept and not consumed. Time lag: how long the next of them has been stored. Last
    consumed: when the last consumed message was stored. Of one group with tags or a condition the
    messages it selects are counted.

    Exit codes: 0; 3 where a bound of --max or --max-age is exceeded; 1 where the bounded figure is
    unknown.
    """
    with looking(namesrv) as admin:
        if group is not None:
            states = [admin.groups.state(group, topic)]
        else:
            states = admin.groups.all(topic)
    if as_json:
        print_json([_lag_json(state, queue) for state in states for queue in state.consumed])
    else:
        print_states(states, named=group is None)
    _judge(states, max_, max_age)


def _lag_json(state: GroupState, queue: QueueState) -> dict[str, Any]:
    time_lag_ms = queue.time_lag_ms(state.taken_ms)
    return {"group": state.group, **json_of(queue), "timeLagMs": time_lag_ms}


def print_states(states: Sequence[GroupState], *, named: bool) -> None:
    """Print the queues of groups as a table, and further remarks on each group."""
    rows = [(state, queue) for state in states for queue in state.consumed]
    queues = [queue for _, queue in rows]
    owners = {queue.client_id for queue in queues}
    several = len(owners - {None}) > 1 or named
    columns = [
        Name("Topic", lambda row: row[1].topic),
        Name("Broker", lambda row: row[1].broker_name, importance=7),
        Count("Queue", lambda row: str(row[1].queue_id)),
        Count("Broker offset", lambda row: number(row[1].max_offset), importance=4),
        Count("Committed", lambda row: number(row[1].committed_offset, NONE), importance=5),
        Count("Lag", lambda row: number(row[1].lag), colour=waits),
    ]
    if named:
        columns.insert(0, Name("Group", lambda row: row[0].group))
    if any(queue.matching is not None for queue in queues):
        columns.append(Count("Wanted", lambda row: _wanted(row[1]), colour=waits))
    if any(queue.expired for queue in queues):
        columns.append(
            Count("Expired", lambda row: number(row[1].expired, NONE), importance=8, colour=lost)
        )
    columns += [
        Count("Time lag", lambda row: span(row[1].time_lag_ms(row[0].taken_ms)), importance=8),
        Name("Consumed up to", lambda row: moment(row[1].last_consumed_ms), importance=3),
    ]
    if several:
        columns.append(Name("Owner", lambda row: row[1].client_id or NONE, importance=6))
    render(rows, columns, False, footer=_footer(queues))
    if not several and owners - {None}:
        print_prose(_owned(queues))
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
    lines = [
        f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}: {queue.error}"
        for queue in state.queues
        if queue.error is not None
    ]
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
            f"`rocketstream dlq causes {word(state.group)}`"
        )
    if state.message_model == "BROADCASTING":
        lines.append("broadcasting: each member keeps offsets of its own, brokers know none")
    if state.members is not None and not state.members:
        lines.append("nobody is connected")
    return lines


def _wanted(queue: QueueState) -> str:
    if queue.matching is None or queue.matching_is_exact:
        return number(queue.waiting)
    low, high = queue.matching_range or (queue.matching, queue.matching)
    return f"~{queue.matching:,} ({low:,} to {high:,})"


def _footer(queues: Sequence[QueueState]) -> str:
    known = [queue.lag for queue in queues if queue.lag is not None]
    unknown = len(queues) - len(known)
    total = number(sum(max(lag, 0) for lag in known)) if known or not queues else number(None)
    footer = f"total lag {total} in {plural(len(queues), 'queue')}"
    if any(queue.matching is not None for queue in queues):
        wanted = sum(queue.waiting or 0 for queue in queues)
        about_ = "" if all(queue.matching_is_exact for queue in queues) else "about "
        footer += f", of which its filter wants {about_}{number(wanted)}"
    untold = sum(queue.lag is None and queue.error is None for queue in queues)
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
                exceeded.append(f"{state.group}: {messages_wait(waiting)}, over {max_:,}")
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
        untold = ", ".join(dict.fromkeys(unknown))
        say(f"error: whether the bound is exceeded is not known for {shown(untold)}")
    if exceeded or unknown:
        raise Exit(EXIT_EXCEEDED if exceeded else EXIT_FAILED)


# --- why ------------------------------------------------------------------------------------------


@group.command(cls=Watched, epilog="Example: `rocketstream group why billing`")
@group_argument
@option(
    "--watch-for SPAN",
    "Watch the group first, for 30s or 4m, say: then also whether it catches up.",
    SPAN,
)
@shows(watch=True)
def why(group: str, watch_for: int | None, namesrv: str, as_json: bool) -> None:
    """Say how a group does and why it is behind, with evidence and what to do.

    Asks brokers and the group's members twice, half a second apart; changes nothing. The first line
    is the verdict; causes follow, the most telling first.
    """
    with looking(namesrv) as admin:
        window = admin.groups.watch(group, watch_for / 1_000) if watch_for else ()
        report = admin.groups.why(group, window=window)
    if as_json:
        print_json(report)
    else:
        print_why(report)


def print_why(report: WhyReport) -> None:
    """Print a report as text that fits the terminal, 80 columns if it is narrower than that."""
    width = min(room() or WIDTH_MAX, WIDTH_MAX)
    _folded(f"{report.verdict.verdict}: {report.verdict.sentence}", width)
    for place, cause in enumerate(report.causes, 1):
        print_line("")
        _folded(f"{place}. {_heading(cause)}", width, "   ")
        for line in cause.evidence:
            _folded(f"   - {line}", width, "     ")
        for line in (cause.stack or "").splitlines():
            print_line(f"     {line}")
        if cause.remedy:
            _folded(f"   do: {cause.remedy}", width, "       ")
    if not report.causes:
        print_line("")
        print_line("No cause was found.")
        if report.verdict.verdict == "UNKNOWN":
            # One look cannot tell a message that is pinned from the end of a backlog.
            more = f"rocketstream group why {word(report.group)} --watch-for 1m"
            _folded(f"Watching tells more: {more}", width)
    if report.unknown:
        print_line("")
        print_line("Not known:")
        for line in report.unknown:
            _folded(f"   - {line}", width, "     ")


def _heading(cause: Cause) -> str:
    return f"{cause.kind.value[0].upper()}{cause.kind.value[1:]}: {cause.sentence}"


def _folded(text: str, width: int, indent: str = "") -> None:
    """Print prose folded between words; a name is never cut."""
    first, *rest = fold(shown(text), width - len(indent))
    print_line("\n".join([first, *(indent + line for line in rest)]))


# --- members --------------------------------------------------------------------------------------


@group.command(cls=Watched, epilog="Example: `rocketstream group members billing`")
@group_argument
@shows(watch=True)
def members(group: str, namesrv: str, as_json: bool) -> None:
    """Show the connected members of a group and what they subscribe."""
    from rocketstream.protocol.codes import version_name

    with looking(namesrv) as admin:
        row = admin.groups.connections(group)
    if as_json:
        told = json_of(row)
        told["members"] = [
            json_of(each) | {"versionName": version_name(each.version)} for each in row.members
        ]
        print_json(told)
        return
    columns = (
        Name("Client", lambda member: member.client_id),
        Name("Address", lambda member: member.address, importance=5),
        Column("Language", lambda member: member.language, importance=3),
        Name("Version", lambda member: version_name(member.version)),
    )
    render(row.members, columns, False)
    for each in row.subscriptions:
        print_prose(f"subscribes {each.topic} {each.expression_type} {each.expression}")
    for member in row.members:
        if member.twins:
            print_prose(
                f"{member.client_id} is {len(member.twins) + 1} programs: also connected from "
                f"{', '.join(member.twins)}; each is given the same queues"
            )
    print_line(f"{plural(len(row.members), 'member')}, {row.message_model}, {row.consume_type}")


@group.command(
    "running-info",
    cls=Watched,
    epilog="Examples: `rocketstream group running-info billing` · "
    "`rocketstream group running-info billing 10.0.0.9@4242 --stack --settings`",
)
@group_argument
@argument("[CLIENT]", "Client id of one member; all when left out.")
@option("--stack", "Also show the stacks of its threads.")
@option("--settings", "Also show its settings.")
@shows(watch=True)
def running_info(
    group: str, client: str | None, stack: bool, settings: bool, namesrv: str, as_json: bool
) -> None:
    """Ask members what they are doing: what they hold, lag per queue, rates, threads."""
    with looking(namesrv) as admin:
        rows = admin.groups.running_info(group, client, stacks=stack)
        lags = {} if as_json else _lags(admin, group)
    if as_json:
        print_json(rows)
        return
    for place, row in enumerate(rows):
        if place:
            print_line("")
        print_running(row, lags, settings)


def _lags(admin: Any, group: str) -> Lags:
    from rocketstream.errors import RocketMQError

    try:
        queues = admin.groups.state(group, matching=False, owners=False).queues
    except RocketMQError:
        return {}  # shown as unknown
    return {q.key: q.lag for q in queues}


def print_running(row: RunningInfoRow, lags: Lags, settings: bool) -> None:
    """Print what a member does; those of its queues first that hold most."""

    def behind(queue: RunningQueueRow) -> int | None:
        return lags.get(MessageQueue(queue.topic, queue.broker_name, queue.queue_id))

    print_line(f"{row.client_id} of group {row.group}")
    print_prose(_held(row.queues))
    columns = (
        Name("Topic", lambda queue: queue.topic),
        Name("Broker", lambda queue: queue.broker_name, importance=6),
        Count("Queue", lambda queue: str(queue.queue_id)),
        Count("Lag", lambda queue: number(behind(queue))),
        Count("Holds", lambda queue: number(queue.cached)),
        Count("Oldest held", lambda queue: number(queue.oldest, NONE), importance=7),
        Count("Committed", lambda queue: number(queue.commit_offset), importance=4),
        Name("Last pull", lambda queue: moment(queue.last_pull_ms), importance=2),
        Name("Listener last done", lambda queue: moment(queue.last_consume_ms), importance=5),
        Column("Locked", lambda queue: "yes" if queue.locked else "no", importance=1),
    )
    queues = sorted(row.queues, key=lambda queue: (-queue.cached, -(behind(queue) or 0)))
    render(queues, columns, False)
    for topic, rates in row.rates.items():
        print_prose(_rates(topic, rates))
    threads = row.properties.get("PROP_THREADPOOL_CORE_SIZE", UNKNOWN)
    is_orderly = row.properties.get("PROP_CONSUMEORDERLY") == "true"
    print_line(f"threads for the listener: {threads}{', in order' if is_orderly else ''}")
    if row.stacks:
        print_line(row.stacks.rstrip())
    if settings:
        print_fields(row.properties.items())
    elif row.properties:
        print_line(f"{plural(len(row.properties), 'setting')}: --settings shows them")


def _held(queues: tuple[RunningQueueRow, ...]) -> str:
    """Show the messages a member holds and has not finished: a stuck member is stuck in one of
    them."""
    holding = [queue for queue in queues if queue.cached]
    if not holding:
        return f"holds no message; owns {plural(len(queues), 'queue')}"
    # The queue whose listener has been silent for longest is the one to look at.
    first = min(holding, key=lambda queue: queue.last_consume_ms or 0)
    return (
        f"holds {plural(sum(q.cached for q in holding), 'message')} of {len(holding)} of its "
        f"{plural(len(queues), 'queue')}; waiting for longest: {first.topic} "
        f"{first.broker_name}:{first.queue_id} from offset {number(first.oldest)} on, its listener "
        f"last done at {moment(first.last_consume_ms, 'a time it does not know')}"
    )


def _rates(topic: str, rates: Mapping[str, float]) -> str:
    def told(name: str) -> str:
        return per_second(rates.get(name))

    return (
        f"{topic}: consumes {told('consumeOKTPS')}/s in {told('consumeRT')} ms each, fails "
        f"{told('consumeFailedTPS')}/s, pulls {told('pullTPS')}/s in {told('pullRT')} ms each"
    )
