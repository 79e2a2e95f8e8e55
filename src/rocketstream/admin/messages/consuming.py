"""Consuming one message once more, by one member (C-530, C-538).

Law: the only operation that makes a member act.
"""

from __future__ import annotations

from rocketstream.admin.core.joining import member_rows
from rocketstream.admin.core.likeness import like
from rocketstream.admin.messages.viewing import MessageAdmin
from rocketstream.admin.rows import ConsumedRow, ConsumePlan
from rocketstream.admin.service import change, question
from rocketstream.errors import ConfigurationError


class ConsumeAdmin(MessageAdmin):
    """The operations of ``Admin.messages`` that make a member consume a message."""

    @question
    def consume_plan(self, group: str, client_id: str, topic: str, msg_id: str) -> ConsumePlan:
        """Return what ``consume`` would do; changes nothing.

        Raises:
            OffsetNotFoundError: there is no such message.
            ConfigurationError: the member is not connected; the error names the connected ones.
        """
        connections = self._wire.connections(group, self._wire.masters()).values()
        members = {member.client_id for member in member_rows(connections)}
        if client_id not in members:
            there = ", ".join(sorted(members)) or "nobody is"
            raise ConfigurationError(
                f"{client_id!r} is not connected as a member of group {group!r}"
                f"{like(client_id, members)}; connected: {there}",
                group=group,
                client_id=client_id,
            )
        message = self.view(topic, msg_id)
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

    @change
    def consume(self, group: str, client_id: str, topic: str, msg_id: str) -> ConsumedRow:
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
        message = self.view(topic, msg_id)
        arguments = {"group": group, "client": client_id, "topic": topic, "message": msg_id}
        with self._changes.open("message.consume", arguments) as made:
            result = made.wire.consume_directly(
                message.store_host, group, client_id, message.offset_msg_id
            )
            made.after = {
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
