"""Consumer groups: their connected members, their offsets, how far behind they are.

Law: a figure that no broker answered stays None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rocketstream.admin.core.joining import member_rows
from rocketstream.admin.core.lag import offsets_of_group
from rocketstream.admin.progress.sweep import SweepAdmin
from rocketstream.admin.rows import GroupRow, LagRow, MemberRow, TopicStatusRow
from rocketstream.admin.state import GroupState, QueueKind
from rocketstream.errors import BrokerError, ConsumerNotOnlineError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerConnection


class GroupAdmin(SweepAdmin):
    """The group operations of ``Admin``."""

    def group_list(self) -> list[GroupRow]:
        """Return every consumer group the brokers know, except upstream's own groups.

        Raises:
            ConnectError: no name server answered.
            RouteNotFoundError: there is no broker.
        """
        return [
            GroupRow(
                group=state.group,
                members=None if state.members is None else len(state.members),
                message_model=state.message_model,
                topics=_topics(state),
                lag=state.lag,
                queues_unknown=state.queues_unknown,
                time_lag_ms=state.time_lag_ms,
                expired=state.expired,
                retrying=state.retrying,
                delayed=state.delayed,
                delayed_is_exact=state.delayed_is_exact,
                dead_letters=state.dead_letters,
                errors=state.errors,
            )
            for state in self.group_states()
        ]

    def group_members(self, group: str) -> list[MemberRow]:
        """Return the connected members of a group; empty when nobody is connected."""
        return list(member_rows(self._connections(group, self._wire.masters()).values()))

    def group_lag(self, group: str, topic: str | None = None) -> list[LagRow]:
        """Return how far a group is in each queue it consumes (C-526 to C-529).

        The queues of ``group_state``, without dead letters. Needs no route of the retry topic, so
        groups that never sent a heartbeat (a Spark query's, say) can be examined too.

        Args:
            group: the consumer group.
            topic: only this topic; None for all the group has offsets for or subscribes to.

        Raises:
            ConfigurationError: no broker knows the group.
            RouteNotFoundError: ``topic`` is given and unknown.
        """
        return lag_rows(self.group_state(group, topic, matching=False))

    def group_begin(
        self, group: str, topic: str, timestamp_ms: int | None = None
    ) -> dict[MessageQueue, int]:
        """Store where a group begins, in those queues of a topic it has no offset for.

        A consumer's own ``consume_from_where`` is not enough: for a young topic a broker answers
        0 to a group it does not know, and the group begins at the oldest message (C-195).

        Args:
            group: the consumer group; left alone while it has connected members.
            topic: the topic.
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
        if self._connections(group, masters):
            return {}
        tables = self._all_offsets(masters)
        stored = {} if tables is None else offsets_of_group(tables, group)
        begin: dict[MessageQueue, int] = {}
        for row in self.topic_status(topic):
            queue = MessageQueue(row.topic, row.broker_name, row.queue_id)
            if queue not in stored and queue in queues:
                begin[queue] = self._begin_offset(queue, row, timestamp_ms)
        if not begin:
            return begin
        arguments = {"group": group, "topic": topic, "timestampMs": timestamp_ms}
        with self._changes.open("group.begin", arguments) as change:
            for queue, offset in begin.items():
                change.wire.store_offset(group, queue, offset)
            change.after = {str(queue): offset for queue, offset in begin.items()}
        return begin

    def _begin_offset(
        self, queue: MessageQueue, row: TopicStatusRow, timestamp_ms: int | None
    ) -> int:
        newest = row.last_update_ms
        # A search by a time after the newest message finds that message, not the end (C-372).
        if timestamp_ms is None or newest is None or timestamp_ms > newest:
            return row.max_offset
        return self._client.search_offset(queue, timestamp_ms)

    def _connections(self, group: str, masters: Mapping[str, str]) -> dict[str, ConsumerConnection]:
        """Return each broker's connected members; brokers where nobody is connected are absent."""
        found: dict[str, ConsumerConnection] = {}
        for broker_name, address in masters.items():
            try:
                found[broker_name] = self._wire.consumer_connection(address, group)
            except ConsumerNotOnlineError:
                continue
        return found

    def _all_offsets(
        self, masters: Mapping[str, str]
    ) -> dict[str, dict[str, dict[int, int]]] | None:
        """Return every broker's offset table; None when one does not answer code 43."""
        try:
            return {name: self._wire.all_offsets(address) for name, address in masters.items()}
        except BrokerError:
            return None


def lag_rows(state: GroupState) -> list[LagRow]:
    """Return the rows of a group's queues, except its dead letters."""
    return [
        LagRow(
            group=state.group,
            topic=queue.topic,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            broker_offset=queue.max_offset,
            consumer_offset=queue.committed_offset,
            lag=queue.lag,
            last_consumed_ms=queue.last_consumed_ms,
            time_lag_ms=queue.time_lag_ms(state.taken_ms),
            client_id=queue.client_id,
            kind=queue.kind,
            min_offset=queue.min_offset,
            expired=queue.expired,
            matching=queue.matching,
            matching_is_exact=queue.matching_is_exact,
            error=queue.error,
        )
        for queue in state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
    ]


def _topics(state: GroupState) -> tuple[str, ...]:
    queues = state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
    return tuple(sorted({queue.topic for queue in queues}))
