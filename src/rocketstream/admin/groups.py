"""Consumer groups: which exist, how far they are, who consumes, why they are behind.

Law: a figure that no broker answered stays None.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rocketstream._util.stopping import wait_unless_stopped
from rocketstream.admin.core import joining
from rocketstream.admin.core.joining import BrokerAnswers, member_rows, offsets_of_group
from rocketstream.admin.rows import (
    ConnectionRow,
    MemberRow,
    ProgressRow,
    RunningInfoRow,
    TimeSpanRow,
)
from rocketstream.admin.service import Service, change, question
from rocketstream.admin.state import GroupState, QueueKind, QueueState, WhyReport, known_ms
from rocketstream.admin.survey import SweepScope, groups_at
from rocketstream.admin.sweep import Sweep
from rocketstream.admin.topics import Topics, offset_at
from rocketstream.admin.wire import questions
from rocketstream.admin.wire.looking import beside
from rocketstream.admin.wire.questions import CLIENT_TIMEOUT_MS
from rocketstream.errors import BrokerError, ConfigurationError, ConsumerNotOnlineError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rocketstream.admin.state import GroupVerdict
    from rocketstream.protocol.bodies import (
        ConsumerRunningInfo,
        QueueTimeSpan,
    )

VERDICT_STEPS = 6
"""The least number of states taken for a verdict; they are at most 5 s apart."""
STEP_MAX_MS = 5_000


class Groups(Service):
    """``Admin.groups``."""

    @question
    def names(self) -> list[str]:
        """Return the names of all consumer groups except the system's, sorted; a request per
        broker.

        Raises:
            RouteNotFoundError: no broker is registered.
            ConnectError: no name server answered.
        """
        masters = list(self._wire.masters().values())
        told = beside(lambda each: self._wire.ask(each, questions.GROUPS), masters)
        found = {name for each in told for name in each}
        return sorted(name for name in found if not names.is_system_group(name))

    @question
    def lag(self, group: str, topic: str | None = None) -> tuple[QueueState, ...]:
        """Return how far a group is in each queue it consumes (C-526 to C-529).

        The queues of ``state``, without dead letters. Needs no route of the retry topic, so
        groups that never sent a heartbeat (a Spark query's, say) can be examined too.

        Args:
            topic: only this topic; None for all the group has offsets for or subscribes to.

        Raises:
            ConfigurationError: no broker knows the group.
            RouteNotFoundError: ``topic`` is given and unknown.
        """
        return self.state(group, topic, matching=False).consumed

    @question
    def state(
        self, group: str, topic: str | None = None, *, matching: bool = True, owners: bool = True
    ) -> GroupState:
        """Return one group at one moment, including how fast messages are delivered to it.

        Args:
            topic: only the queues of this topic; None for all, its retry and dead letters too.
            matching: also count the messages its filter wants, where it has one.
            owners: also ask its members which queues they hold, where there are several.

        Raises:
            ConfigurationError: every broker answered, and none knows the group.
            RouteNotFoundError: ``topic`` is given and unknown; or there is no broker.
            ConnectError: no name server answered.
        """
        return Sweep(self._reach).group(group, topic, matching=matching, owners=owners)

    @question
    def all(self, topic: str | None = None) -> list[GroupState]:
        """Return every group at one moment, except upstream's own, without topics no group
        consumes.

        Args:
            topic: only groups that have queues in this topic, and only these queues; None for all.

        Raises:
            ConnectError: no name server answered.
            RouteNotFoundError: there is no broker, or no such topic.
        """
        return Sweep(self._reach).groups(topic)

    @question
    def progress(
        self,
        groups: Collection[str] | None = None,
        *,
        group_pattern: str | None = None,
        topics: Collection[str] | None = None,
        owners: bool = True,
    ) -> list[ProgressRow]:
        """Return the progress of groups in all their queues, and what could not be found out.

        Blocks for one sweep; a broker that does not answer is asked once.

        Args:
            groups: these groups; one that no broker knows gets a row that says so.
            group_pattern: also groups whose whole name matches this regular expression. With
                neither all are swept, upstream's own left out.
            topics: only these topics; None for all, retry and dead-letter topics included.
            owners: also ask members which queues they hold, where a group has several.

        Returns:
            Rows sorted by group, topic, broker and queue; those with only an error first.

        Raises:
            ConnectError: no name server answered.
            re.error: the pattern is not a regular expression.
        """
        sweep = Sweep(self._reach)
        pattern = None if group_pattern is None else re.compile(group_pattern)
        named = frozenset(groups or ())

        def wanted(group: str) -> bool:
            if pattern is not None and pattern.fullmatch(group):
                return True
            if groups is None and pattern is None:
                return not names.is_system_group(group)
            return group in named

        only = None if topics is None else frozenset(topics)
        scope = SweepScope(wanted, only, owners=owners, tps=True)
        found = sweep.look(scope)
        known = {group for broker in found.brokers for group in groups_at(broker) if wanted(group)}
        if not found.brokers:
            unknown: list[str | None] = [*sorted(named)]
            return [_nobody_registered(group) for group in unknown or [None]]
        if not known | named:
            return [_blank(broker, None) for broker in found.brokers if broker.error]
        rows = [
            row
            for group in known | named
            for row in _progress_of(sweep.state_of(group, found, scope), found.brokers)
        ]
        return sorted(rows, key=_place_of)

    @question
    def verdict(self, group: str, seconds: float = 30.0) -> GroupVerdict:
        """Watch a group for ``seconds`` and judge how it does; blocks for that long.

        Offsets are committed every 5 s, so less than 20 s tell little, and 5 minutes tell a burst
        from falling behind.

        Args:
            seconds: how long to watch; 0 judges one state.

        Raises:
            ConfigurationError: every broker answered, and none knows the group; or ``seconds`` is
                negative.
            RouteNotFoundError: there is no broker.
            ConnectError: no name server answered.
        """
        return self.why(group, window=self.watch(group, seconds)).verdict

    @question
    def why(self, group: str, *, window: Sequence[GroupState] = ()) -> WhyReport:
        """Find out why a group is behind; takes less than two seconds where brokers answer.

        Asks brokers for the group's offsets, asks members twice for their running info and stacks,
        and reads the messages the group stands at. Changes nothing.

        Args:
            window: earlier states of the group, oldest first: the verdict takes them into account.

        Raises:
            ConfigurationError: every broker answered, and none knows the group.
            RouteNotFoundError: there is no broker.
            ConnectError: no name server answered.
        """
        from rocketstream.admin.why import Why

        return Why(self._reach).report(group, window)

    @question
    def watch(self, group: str, seconds: float) -> list[GroupState]:
        """Return the states of a group over ``seconds``, oldest first; blocks for that long.

        Args:
            seconds: how long to watch; 0 takes one state.

        Raises:
            ConfigurationError: every broker answered, and none knows the group; or ``seconds`` is
                negative.
            RouteNotFoundError: there is no broker.
            ConnectError: no name server answered.
        """
        if seconds < 0:
            raise ConfigurationError(f"seconds must be 0 or more, not {seconds}", seconds=seconds)
        began_ms = self._clock.monotonic_ms()
        states = [self.state(group)]
        step_ms = min(seconds * 1_000 / VERDICT_STEPS, STEP_MAX_MS)
        while (left_ms := began_ms + seconds * 1_000 - self._clock.monotonic_ms()) > 0:
            wait_unless_stopped(min(step_ms, left_ms) / 1_000)
            states.append(self.state(group))
        return states

    @question
    def members(self, group: str) -> list[MemberRow]:
        """Return the connected members of a group; empty when nobody is connected."""
        return list(member_rows(self._wire.connections(group, self._wire.masters()).values()))

    @question
    def connections(self, group: str) -> ConnectionRow:
        """Return the connected members of a group and their subscriptions (C-530).

        Raises:
            ConsumerNotOnlineError: nobody is connected.
        """
        names.check_group(group)
        found = self._wire.connections(group, self._wire.masters())
        if not found:
            raise _nobody(group)
        first = next(iter(found.values()))
        subscriptions = {
            data.topic: data
            for connection in found.values()
            for data in connection.subscription_table.values()
        }
        return ConnectionRow(
            group=group,
            consume_type=str(first.consume_type),
            message_model=str(first.message_model),
            consume_from_where=str(first.consume_from_where),
            members=tuple(member_rows(found.values())),
            subscriptions=joining.subscription_rows(subscriptions.values()),
        )

    @question
    def running_info(
        self, group: str, client_id: str | None = None, *, stacks: bool = False
    ) -> list[RunningInfoRow]:
        """Ask members for their running info (307); blocks for up to 10 s per silent member.

        Args:
            client_id: only this member; None asks all.
            stacks: also ask for the stacks of their threads.

        Raises:
            ConsumerNotOnlineError: nobody is connected, or this member is not.
            BrokerError: a member did not answer, or said why it cannot.
        """
        return [
            _running_row(
                group,
                member,
                self._wire.ask(
                    address,
                    questions.running_of(group, member, jstack_enable=stacks),
                    timeout_ms=CLIENT_TIMEOUT_MS,
                ),
            )
            for member, address in self._member_addresses(group, client_id).items()
        ]

    @question
    def consumer_status(
        self, group: str, topic: str, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets each member says it has consumed in a topic (223), by client id.

        Raises:
            ConsumerNotOnlineError: nobody is connected.
        """
        found: dict[str, dict[MessageQueue, int]] = {}
        masters = self._wire.masters()
        connections = self._wire.connections(group, masters)
        if not connections:
            raise _nobody(group)
        asked = questions.status_of(topic, group, client_id)
        for broker_name in connections:
            told = self._wire.ask(masters[broker_name], asked, timeout_ms=CLIENT_TIMEOUT_MS)
            for member, table in told.items():
                found.setdefault(member, {}).update(table)
        return found

    @question
    def time_span(self, group: str, topic: str) -> list[TimeSpanRow]:
        """Return the store times between which a group stands, by queue (303).

        Raises:
            RouteNotFoundError: the topic is unknown.
        """
        rows: list[TimeSpanRow] = []
        for address in self._wire.topic_masters(topic).values():
            spans = self._wire.ask(address, questions.span_of(topic, group)).consume_time_span_set
            rows += [_span_row(span.message_queue, span) for span in spans if span.message_queue]
        return sorted(rows, key=lambda row: (row.broker_name, row.queue_id))

    @question
    def settings(self, group: str) -> dict[str, dict[str, Any]]:
        """Return a group's settings by broker, under upstream's names; empty where no broker has
        any.

        A group that only committed offsets has no settings at brokers of 4.x.

        Raises:
            ConfigurationError: no broker knows the group; the error names similar ones.
        """
        from rocketstream.admin.changes.service import settings_of

        return settings_of(self._reach, group)

    @change
    def begin(
        self, group: str, topic: str, timestamp_ms: int | None = None
    ) -> dict[MessageQueue, int]:
        """Store where a group begins, in those queues of a topic it has no offset for.

        A consumer's own ``consume_from_where`` is not enough: for a young topic a broker answers
        0 to a group it does not know, and the group begins at the oldest message (C-195).

        Args:
            group: the consumer group; left alone while it has connected members.
            timestamp_ms: begin with messages stored at this time or later, ms since 1970; None
                begins after the newest.

        Returns:
            The offsets stored, empty when there was nothing to do.

        Raises:
            RouteNotFoundError: the topic is unknown.
            ReadOnlyError: this Admin is read-only.
        """
        self._changes.check("group.begin")
        names.check_group(group)
        queues = self._client.subscribe_queues(topic, refresh=True)
        masters = self._wire.masters()
        if self._wire.connections(group, masters):
            return {}
        tables = self._wire.offset_tables(masters)
        stored = {} if tables is None else offsets_of_group(tables, group)
        begin: dict[MessageQueue, int] = {}
        for row in Topics(self._reach).status(topic):
            queue = row.key
            if queue not in stored and queue in queues:
                begin[queue] = (
                    row.max_offset
                    if timestamp_ms is None
                    else offset_at(self._reach, queue, row, timestamp_ms)
                )
        if not begin:
            return begin
        arguments = {"group": group, "topic": topic, "timestampMs": timestamp_ms}
        with self._changes.open("group.begin", arguments) as made:
            for queue, offset in begin.items():
                made.wire.store_offset(group, queue, offset)
            made.after = {str(queue): offset for queue, offset in begin.items()}
        return begin

    # --- parts -----------------------------------------------------------------------------------

    def _member_addresses(self, group: str, client_id: str | None) -> dict[str, str]:
        """Return the address of a broker each member is connected to, by client id."""
        names.check_group(group)
        masters = self._wire.masters()
        found: dict[str, str] = {}
        for broker_name, connection in self._wire.connections(group, masters).items():
            for member in connection.connection_set:
                if client_id is None or member.client_id == client_id:
                    found.setdefault(member.client_id, masters[broker_name])
        if not found:
            raise _nobody(group, client_id)
        return found


def _nobody(group: str, client_id: str | None = None) -> BrokerError:
    text = f"no member of consumer group {group!r} is connected"
    if client_id is not None:
        text = f"client {client_id!r} is not connected as a member of consumer group {group!r}"
    return ConsumerNotOnlineError(int(ResponseCode.CONSUMER_NOT_ONLINE), text)


def _running_row(group: str, client_id: str, info: ConsumerRunningInfo) -> RunningInfoRow:
    return RunningInfoRow(
        group=group,
        client_id=client_id,
        properties=dict(sorted(info.properties.items())),
        subscriptions=joining.subscription_rows(info.subscription_set),
        queues=tuple(joining.running_queue(q, each) for q, each in sorted(info.mq_table.items())),
        rates={
            topic: {
                "pullRT": status.pull_rt,
                "pullTPS": status.pull_tps,
                "consumeRT": status.consume_rt,
                "consumeOKTPS": status.consume_ok_tps,
                "consumeFailedTPS": status.consume_failed_tps,
                "consumeFailedMsgs": status.consume_failed_msgs,
            }
            for topic, status in sorted(info.status_table.items())
        },
        stacks=info.jstack,
    )


def _span_row(queue: MessageQueue, span: QueueTimeSpan) -> TimeSpanRow:
    return TimeSpanRow(
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        min_store_ms=known_ms(span.min_time_stamp),
        max_store_ms=known_ms(span.max_time_stamp),
        consumed_ms=known_ms(span.consume_time_stamp),
        delay_ms=span.delay_time,
    )


# --- progress as rows ----------------------------------------------------------------------------


def _progress_of(state: GroupState, brokers: list[BrokerAnswers]) -> Iterator[ProgressRow]:
    if all(b.error is None and not b.knows(state.group) for b in brokers):
        text = f"no broker knows group {state.group}: it never committed an offset nor connected"
        yield ProgressRow(None, None, state.group, error=text)
    for broker in brokers:
        if broker.error is not None:
            yield _blank(broker, state.group)
        for queue in state.queues:
            # A broker's answers from before it fell silent are still true.
            if queue.broker_name == broker.name and queue.max_offset is not None:
                yield _progress_row(state, broker, queue)
        yield from _untold_topics(state, broker)


def _progress_row(state: GroupState, broker: BrokerAnswers, queue: QueueState) -> ProgressRow:
    group = state.group
    dead = queue.kind is QueueKind.DEAD_LETTER
    about = (joining.about_members(group), joining.about_owners(group))
    missing = [] if dead else [broker.refused[what] for what in about if what in broker.refused]
    errors = [*missing, *([queue.error] if queue.error else [])]
    members: int | None = None
    if not dead and about[0] not in broker.refused and broker.error is None:
        connection = broker.connections.get(group)
        members = 0 if connection is None else len(connection.connection_set)
    return ProgressRow(
        cluster=broker.cluster,
        broker_name=broker.name,
        group=group,
        topic=queue.topic,
        kind=queue.kind,
        queue_id=queue.queue_id,
        min_offset=queue.min_offset,
        max_offset=queue.max_offset,
        committed_offset=queue.committed_offset,
        lag=None if dead else queue.lag,
        time_lag_ms=None if dead else queue.time_lag_ms(state.taken_ms),
        last_consumed_ms=queue.last_consumed_ms,
        client_id=queue.client_id,
        members=members,
        consume_tps=None if dead else broker.tps.get((group, queue.topic)),
        error="; ".join(dict.fromkeys(errors)) or None,
        expired=None if dead else queue.expired,
    )


def _untold_topics(state: GroupState, broker: BrokerAnswers) -> Iterator[ProgressRow]:
    """Yield a row for each topic whose queues a broker refused to report."""
    lost = {q.topic for q in state.queues if q.broker_name == broker.name and q.max_offset is None}
    for topic in sorted(lost):
        why = broker.refused.get(joining.about_ends(topic))
        if why is not None:
            kind = joining.kind_of(state.group, topic)
            yield ProgressRow(
                broker.cluster, broker.name, state.group, topic=topic, kind=kind, error=why
            )


def _blank(broker: BrokerAnswers, group: str | None) -> ProgressRow:
    return ProgressRow(broker.cluster, broker.name, group, error=broker.error)


def _nobody_registered(group: str | None) -> ProgressRow:
    text = "no broker is registered with the name server"
    return ProgressRow(None, None, group, error=text)


def _place_of(row: ProgressRow) -> tuple[str, str, str, int]:
    queue_id = -1 if row.queue_id is None else row.queue_id
    return (row.group or "", row.topic or "", row.broker_name or "", queue_id)
