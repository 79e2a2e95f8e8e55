"""``rocketstream group members|running-info``: the members of a group and their state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from rocketstream.cli.declare import Argument, Commands, Option
from rocketstream.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from rocketstream.cli.output import (
    NONE,
    UNKNOWN,
    Column,
    as_json,
    moment,
    number,
    plural,
    print_fields,
    print_json,
    print_line,
    print_prose,
    print_table,
)

if TYPE_CHECKING:
    from rocketstream.admin.rows import MemberRow, RunningInfoRow, RunningQueueRow

    Lags = Mapping[tuple[str, str, int], int | None]

Group = Annotated[str, Argument(metavar="GROUP", help="The consumer group.")]


def add_to(commands: Commands) -> None:
    """Add the commands to ``group``."""
    commands.add(members, epilog="Example: `rocketstream group members billing`")
    commands.add(
        running_info,
        "running-info",
        epilog="Examples: `rocketstream group running-info billing` · "
        "`rocketstream group running-info billing 10.0.0.9@4242 --stack --settings`",
    )


def members(group: Group, namesrv: Namesrv = DEFAULT_NAMESRV, as_json_: Json = False) -> None:
    """Show the connected members of a group and what they subscribe."""
    from rocketstream.admin import Admin
    from rocketstream.protocol.codes import version_name

    with Admin(namesrv) as admin:
        row = admin.groups.connections(group)
    if as_json_:
        shown = as_json(row)
        shown["members"] = [_member_json(member) for member in row.members]
        shown["subscriptions"] = [as_json(each) for each in row.subscriptions]
        print_json(shown)
        return
    print_table(
        [
            Column("Client", keep=True),
            Column("Address", keep=True, importance=5),
            Column("Language", importance=3),
            Column("Version", keep=True),
        ],
        [(m.client_id, m.address, m.language, version_name(m.version)) for m in row.members],
    )
    for each in row.subscriptions:
        print_prose(f"subscribes {each.topic} {each.expression_type} {each.expression}")
    for member in row.members:
        if member.twins:
            print_prose(
                f"{member.client_id} is {len(member.twins) + 1} programs: also connected from "
                f"{', '.join(member.twins)}; each is given the same queues"
            )
    print_line(f"{plural(len(row.members), 'member')}, {row.message_model}, {row.consume_type}")


def _member_json(member: MemberRow) -> dict[str, Any]:
    from rocketstream.protocol.codes import version_name

    return as_json(member) | {"versionName": version_name(member.version)}


def running_info(
    group: Group,
    client: Annotated[
        str | None,
        Argument(metavar="CLIENT", help="Client id of one member; all when left out."),
    ] = None,
    stacks: Annotated[bool, Option("--stack", help="Also show the stacks of its threads.")] = False,
    settings: Annotated[bool, Option("--settings", help="Also show its settings.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json_: Json = False,
) -> None:
    """Ask members what they are doing: what they hold, lag per queue, rates, threads."""
    from rocketstream.admin import Admin

    with Admin(namesrv) as admin:
        rows = admin.groups.running_info(group, client, stacks=stacks)
        lags = {} if as_json_ else _lags(admin, group)
    if as_json_:
        print_json([_running_json(row) for row in rows])
        return
    for place, row in enumerate(rows):
        if place:
            print_line("")
        _print_running(row, lags, settings)


def _lags(admin: Any, group: str) -> Lags:
    from rocketstream.errors import RocketMQError

    try:
        queues = admin.groups.state(group, matching=False, owners=False).queues
    except RocketMQError:
        return {}  # shown as unknown
    return {(q.topic, q.broker_name, q.queue_id): q.lag for q in queues}


def _running_json(row: RunningInfoRow) -> dict[str, object]:
    shown = as_json(row)
    shown["subscriptions"] = [as_json(each) for each in row.subscriptions]
    shown["queues"] = [as_json(each) for each in row.queues]
    return shown


def _print_running(row: RunningInfoRow, lags: Lags, settings: bool) -> None:
    print_line(f"{row.client_id} of group {row.group}")
    print_prose(_held(row.queues))
    queues = sorted(row.queues, key=lambda queue: (-queue.cached, -(_lag(lags, queue) or 0)))
    print_table(
        [
            Column("Topic", keep=True),
            Column("Broker", keep=True, importance=6),
            Column("Queue", number=True),
            Column("Lag", number=True),
            Column("Holds", number=True),
            Column("Oldest held", number=True, importance=7),
            Column("Committed", number=True, importance=4),
            Column("Last pull", keep=True, importance=2),
            Column("Listener last done", keep=True, importance=5),
            Column("Locked", importance=1),
        ],
        [_queue_cells(queue, lags) for queue in queues],
    )
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


def _lag(lags: Lags, queue: RunningQueueRow) -> int | None:
    return lags.get((queue.topic, queue.broker_name, queue.queue_id))


def _queue_cells(queue: RunningQueueRow, lags: Lags) -> tuple[str, ...]:
    return (
        queue.topic,
        queue.broker_name,
        str(queue.queue_id),
        number(_lag(lags, queue)),
        number(queue.cached),
        NONE if queue.oldest is None else number(queue.oldest),
        number(queue.commit_offset),
        moment(queue.last_pull_ms),
        moment(queue.last_consume_ms),
        "yes" if queue.locked else "no",
    )


def _rates(topic: str, rates: Mapping[str, float]) -> str:
    def told(name: str) -> str:
        return f"{rates[name]:,.1f}" if name in rates else UNKNOWN

    return (
        f"{topic}: consumes {told('consumeOKTPS')}/s in {told('consumeRT')} ms each, fails "
        f"{told('consumeFailedTPS')}/s, pulls {told('pullTPS')}/s in {told('pullRT')} ms each"
    )
