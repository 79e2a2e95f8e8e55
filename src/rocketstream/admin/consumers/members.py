"""Consumers: connections, running info, consuming one message (C-530, C-538).

Law: consuming a message is the only operation that makes a member act.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocketstream.admin.core.fields import known_ms
from rocketstream.admin.core.likeness import like
from rocketstream.admin.messages.viewing import MessageAdmin
from rocketstream.admin.rows import (
    ConnectionRow,
    ConsumedRow,
    ConsumePlan,
    RunningInfoRow,
    RunningQueueRow,
    SubscriptionRow,
)
from rocketstream.admin.wire.asking import CLIENT_TIMEOUT_MS
from rocketstream.errors import BrokerError, ConfigurationError, ConsumerNotOnlineError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import (
        ConsumerRunningInfo,
        ProcessQueueInfo,
        SubscriptionData,
    )


class MemberAdmin(MessageAdmin):
    """The operations of ``Admin`` that look into running consumers."""

    def group_connections(self, group: str) -> ConnectionRow:
        """Return the connected members of a group and their subscriptions (C-530).

        Raises:
            ConsumerNotOnlineError: nobody is connected.
        """
        names.check_group(group)
        found = self._connections(group, self._wire.masters())
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
            members=tuple(self.group_members(group)),
            subscriptions=_subscriptions(subscriptions.values()),
        )

    def running_info(
        self, group: str, client_id: str | None = None, *, stacks: bool = False
    ) -> list[RunningInfoRow]:
        """Ask members for their running info (307); blocks for up to 10 s per silent member.

        Args:
            group: the consumer group.
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
                self._wire.running_info(
                    address, group, member, stacks=stacks, timeout_ms=CLIENT_TIMEOUT_MS
                ),
            )
            for member, address in self._member_addresses(group, client_id).items()
        ]

    def consumer_status(
        self, group: str, topic: str, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets each member says it has consumed in a topic (223), by client id.

        Raises:
            ConsumerNotOnlineError: nobody is connected.
        """
        found: dict[str, dict[MessageQueue, int]] = {}
        masters = self._wire.masters()
        connections = self._connections(group, masters)
        if not connections:
            raise _nobody(group)
        for broker_name in connections:
            told = self._wire.consumer_status(masters[broker_name], group, topic, client_id)
            for member, table in told.items():
                found.setdefault(member, {}).update(table)
        return found

    def consume_message_plan(
        self, group: str, client_id: str, topic: str, msg_id: str
    ) -> ConsumePlan:
        """Return what ``consume_message`` would do; changes nothing.

        Raises:
            OffsetNotFoundError: there is no such message.
            ConfigurationError: the member is not connected; the error names the connected ones.
        """
        members = {member.client_id for member in self.group_members(group)}
        if client_id not in members:
            there = ", ".join(sorted(members)) or "nobody is"
            raise ConfigurationError(
                f"{client_id!r} is not connected as a member of group {group!r}"
                f"{like(client_id, members)}; connected: {there}",
                group=group,
                client_id=client_id,
            )
        message = self.message_view(topic, msg_id)
        return ConsumePlan(
            group=group,
            client_id=client_id,
            topic=topic,
            msg_id=msg_id,
            keys=message.keys,
            broker_name=message.broker_name,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            stored_ms=message.store_timestamp,
        )

    def consume_message(self, group: str, client_id: str, topic: str, msg_id: str) -> ConsumedRow:
        """Make one member consume one message now, outside its normal course (309).

        The group's progress does not change. Blocks until the listener returns, for up to 10 s.

        Args:
            group: the consumer group.
            client_id: the member.
            topic: the message's topic.
            msg_id: either of the message's two ids.

        Raises:
            OffsetNotFoundError: there is no such message.
            ReadOnlyError: this Admin is read-only.
            BrokerError: the member is not connected to the message's broker or did not answer.
        """
        self._changes.check("message.consume")
        message = self.message_view(topic, msg_id)
        arguments = {"group": group, "client": client_id, "topic": topic, "message": msg_id}
        with self._changes.open("message.consume", arguments) as change:
            result = change.wire.consume_directly(
                message.store_host, group, client_id, message.offset_msg_id
            )
            change.after = {
                "result": str(result.consume_result),
                "spentMs": result.spent_time_mills,
            }
        return ConsumedRow(
            client_id=client_id,
            result=str(result.consume_result),
            order=result.order,
            auto_commit=result.auto_commit,
            spent_ms=result.spent_time_mills,
            remark=result.remark,
        )

    # --- parts -----------------------------------------------------------------------------------

    def _member_addresses(self, group: str, client_id: str | None) -> dict[str, str]:
        """Return the address of a broker each member is connected to, by client id."""
        names.check_group(group)
        masters = self._wire.masters()
        found: dict[str, str] = {}
        for broker_name, connection in self._connections(group, masters).items():
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


def _subscriptions(found: Iterable[SubscriptionData]) -> tuple[SubscriptionRow, ...]:
    return tuple(
        sorted(
            SubscriptionRow(data.topic, data.sub_string, data.expression_type or "TAG")
            for data in found
        )
    )


def _running_row(group: str, client_id: str, info: ConsumerRunningInfo) -> RunningInfoRow:
    return RunningInfoRow(
        group=group,
        client_id=client_id,
        properties=dict(sorted(info.properties.items())),
        subscriptions=_subscriptions(info.subscription_set),
        queues=tuple(_queue_row(queue, info.mq_table[queue]) for queue in sorted(info.mq_table)),
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


def _queue_row(queue: MessageQueue, info: ProcessQueueInfo) -> RunningQueueRow:
    return RunningQueueRow(
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        commit_offset=info.commit_offset,
        cached=info.cached_msg_count,
        cached_mib=info.cached_msg_size_in_mib,
        locked=info.locked,
        dropped=info.droped,
        last_pull_ms=known_ms(info.last_pull_timestamp),
        last_consume_ms=known_ms(info.last_consume_timestamp),
        oldest=info.cached_msg_min_offset if info.cached_msg_count else None,
        newest=info.cached_msg_max_offset if info.cached_msg_count else None,
    )
