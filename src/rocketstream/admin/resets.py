"""Moving consumer groups: resets by time, skipping, copying offsets (C-531 to C-537).

Law: plans are values; nothing is changed before a plan was made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from rocketstream.admin.groups import GroupAdmin
from rocketstream.admin.lag import offsets_of_group
from rocketstream.admin.rows import ResetRow
from rocketstream.errors import BrokerError, ConfigurationError, ConsumerNotOnlineError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

TO_EARLIEST_MS = 0
TO_LATEST_MS = -1
BY_MEMBERS, BY_BROKER = "members", "broker"


class ResetAdmin(GroupAdmin):
    """The operations of ``Admin`` that change where groups are."""

    def group_reset_plan(self, group: str, topic: str, timestamp_ms: int) -> list[ResetRow]:
        """Return where each queue of a topic would go; changes nothing.

        Args:
            group: the consumer group.
            topic: the topic.
            timestamp_ms: the message stored nearest to that time (C-372); 0 is the oldest
                message, -1 the end of the queue.

        Raises:
            RouteNotFoundError: the topic is unknown.
            ConfigurationError: a bad group name or time.
        """
        names.check_group(group)
        if timestamp_ms < TO_LATEST_MS:
            raise ConfigurationError(
                f"timestamp_ms is {timestamp_ms}; accepted are -1 (the end), 0 (the oldest "
                "message) and milliseconds since 1970",
                timestamp_ms=timestamp_ms,
            )
        queues = sorted(self._client.subscribe_queues(topic, refresh=True))
        return self._reset_rows(
            queues,
            self._known_offsets(group, queues),
            lambda queue, low, high: self._target(queue, timestamp_ms, low, high),
        )

    def group_reset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = False
    ) -> list[ResetRow]:
        """Move a group to a time, whether members are connected or not (C-535).

        Connected members are told to move themselves and pause for some ten seconds (C-532);
        where nobody is connected the stored offsets are replaced (C-534).

        Args:
            group: the consumer group.
            topic: the topic.
            timestamp_ms: as for ``group_reset_plan``.
            force: also move forward, past messages the group has not consumed. Without it such
                queues stay where they are.

        Returns:
            What was done, by queue; ``by`` tells who did it.

        Raises:
            RouteNotFoundError: the topic is unknown.
            BrokerError: members are connected, but a queue has no stored offset yet (C-531).
        """
        plan = self.group_reset_plan(group, topic, timestamp_ms)
        done: list[ResetRow] = []
        masters = self._wire.masters()
        connections = self._connections(group, masters)
        for broker_name in sorted({row.broker_name for row in plan}):
            rows = [row for row in plan if row.broker_name == broker_name]
            try:
                table = self._wire.reset_offset(
                    masters[broker_name], group, topic, timestamp_ms, force=force
                )
            except BrokerError as error:
                if not self._is_nobody_there(error, masters[broker_name], group):
                    raise
                done += self._replace(group, rows, force=force)
            else:
                # A 5.x broker replaces the offsets itself when nobody is connected.
                by = BY_MEMBERS if broker_name in connections else BY_BROKER
                done += _as_told(rows, table, by)
        return done

    def skip_accumulated(self, group: str, topic: str) -> list[ResetRow]:
        """Move a group to the end of a topic, past everything it has not consumed (C-536)."""
        return self.group_reset(group, topic, TO_LATEST_MS, force=True)

    def group_clone(
        self, source: str, target: str, topic: str | None = None, *, force: bool = False
    ) -> dict[MessageQueue, int]:
        """Give a group the offsets of another (C-537), topic by topic.

        Args:
            source: the group to copy from.
            target: the group to copy to.
            topic: only this topic; None copies every topic but the source's retry topic.
            force: also where the target is connected, or would be moved forward.

        Returns:
            The offsets the target has now in those topics.

        Raises:
            ConfigurationError: the source has no offsets there; or, without ``force``, the
                target is connected (its members would overwrite the copy) or would be moved past
                messages it has not consumed.
        """
        plan = self.group_clone_plan(source, target, topic)
        masters = self._wire.masters()
        if not force:
            self._check_clone(target, plan, masters)
        for broker_name, name in sorted({(row.broker_name, row.topic) for row in plan}):
            self._wire.clone_offsets(masters[broker_name], source, target, name)
        topics = {row.topic for row in plan}
        offsets = offsets_of_group(self._all_offsets(masters) or {}, target)
        return {queue: offset for queue, offset in offsets.items() if queue.topic in topics}

    def group_clone_plan(
        self, source: str, target: str, topic: str | None = None
    ) -> list[ResetRow]:
        """Return what ``group_clone`` would do to the target, by queue; changes nothing.

        Raises:
            ConfigurationError: the source has no offsets there.
        """
        names.check_group(source)
        names.check_group(target)
        tables = self._all_offsets(self._wire.masters()) or {}
        from_ = {
            queue: offset
            for queue, offset in offsets_of_group(tables, source).items()
            if queue.topic == topic or (topic is None and queue.topic != names.retry_topic(source))
        }
        if not from_:
            where = f" in topic {topic!r}" if topic else ""
            raise ConfigurationError(f"group {source!r} has no offsets{where} to copy")
        to = offsets_of_group(tables, target)
        return self._reset_rows(sorted(from_), to, lambda queue, low, high: from_[queue])

    # --- parts -----------------------------------------------------------------------------------

    def _reset_rows(
        self,
        queues: Sequence[MessageQueue],
        stored: Mapping[MessageQueue, int | None],
        target: Callable[[MessageQueue, int, int], int],
    ) -> list[ResetRow]:
        """Return a row per queue; ``target`` is given its beginning and end."""
        low, high = self._client.min_offsets(queues), self._client.max_offsets(queues)
        return [
            ResetRow(
                topic=queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                min_offset=low[queue],
                max_offset=high[queue],
                consumer_offset=stored.get(queue),
                target_offset=target(queue, low[queue], high[queue]),
            )
            for queue in queues
        ]

    def _target(self, queue: MessageQueue, timestamp_ms: int, low: int, high: int) -> int:
        if timestamp_ms == TO_LATEST_MS or low == high:
            return high
        if timestamp_ms == TO_EARLIEST_MS:
            return low
        return self._client.search_offset(queue, timestamp_ms)

    def _known_offsets(self, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        tables = self._all_offsets(self._wire.masters())
        if tables is not None:
            return offsets_of_group(tables, group)
        asked = {queue: self._client.query_consumer_offset(group, queue) for queue in queues}
        return {queue: offset for queue, offset in asked.items() if offset is not None}

    def _is_nobody_there(self, error: BrokerError, address: str, group: str) -> bool:
        """Whether a refused reset means that the stored offsets are ours to replace."""
        if isinstance(error, ConsumerNotOnlineError):
            return True
        try:
            # Upstream looks for stored offsets first: a group without any is refused with 1.
            self._wire.consumer_connection(address, group)
        except ConsumerNotOnlineError:
            return True
        return False

    def _replace(self, group: str, rows: Iterable[ResetRow], *, force: bool) -> list[ResetRow]:
        done = []
        for row in rows:
            if row.skipped and not force:
                known = row.consumer_offset
                stay = row.min_offset if known is None else known
                done.append(dataclasses.replace(row, target_offset=stay, by=BY_BROKER))
                continue
            queue = MessageQueue(row.topic, row.broker_name, row.queue_id)
            self._client.update_consumer_offset(group, queue, row.target_offset)
            done.append(dataclasses.replace(row, by=BY_BROKER))
        return done

    def _check_clone(
        self, target: str, plan: Iterable[ResetRow], masters: Mapping[str, str]
    ) -> None:
        if self._connections(target, masters):
            raise ConfigurationError(
                f"group {target!r} has connected members, whose next commit would overwrite the "
                "copy: stop them first, or force it",
                group=target,
            )
        skipped = sum(row.skipped for row in plan if row.consumer_offset is not None)
        if skipped:
            raise ConfigurationError(
                f"group {target!r} would be moved past {skipped} messages it has not consumed; "
                "force it if that is meant",
                group=target,
            )


def _as_told(
    rows: Iterable[ResetRow], table: Mapping[MessageQueue, int], by: str
) -> list[ResetRow]:
    """Return the rows with the targets the broker answered."""
    done = []
    for row in rows:
        queue = MessageQueue(row.topic, row.broker_name, row.queue_id)
        target = table.get(queue)
        if target is not None:
            done.append(dataclasses.replace(row, target_offset=target, by=by))
    return done
