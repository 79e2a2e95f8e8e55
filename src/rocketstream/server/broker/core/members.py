"""The connected clients: consumers by group with their subscriptions, and producers.

Pure: channels are opaque; methods return which of them to notify. Upstream: ConsumerManager,
ProducerManager (C-336 to C-348); differs in telling the others when a member expires (C-551).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from rocketstream.limits import CLIENT_EXPIRED_MS, GROUPS_MAX, SUBSCRIPTIONS_BYTES_MAX
from rocketstream.protocol.bodies import ConsumerData, SubscriptionData
from rocketstream.server.broker.core.room import Room, check_kept, check_room

_LEAVE_SOME = "end some of their clients first"


@dataclass(slots=True)
class Member:
    """One client behind one channel.

    Raises:
        BrokerError: its id or access key is longer than any that is needed.

    Attributes:
        last_update_ms: wall clock of its last heartbeat, for display.
        heard_ms: the same on a clock that only grows, by which silence is measured.
        since_ms: when it was first heard in its group, on that clock.
        is_twin_told: whether a log line said that another process has its id.
        access_key: the account that signed the heartbeat; None without one.
    """

    channel: Hashable
    client_id: str
    language: int
    version: int
    last_update_ms: int
    heard_ms: float
    access_key: str | None = None
    since_ms: float = 0.0
    is_twin_told: bool = False

    def __post_init__(self) -> None:
        check_kept("a client id", self.client_id)
        check_kept("an access key", self.access_key or "")


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a group and the topics they subscribe."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Hashable, Member] = field(default_factory=dict)

    def channels(self) -> list[Hashable]:
        """Every member's channel."""
        return list(self.members)

    def client_ids(self) -> list[str]:
        """Client ids without repetition, in order of arrival (C-346)."""
        return list(dict.fromkeys(m.client_id for m in self.members.values()))


class Registered(NamedTuple):
    """The outcome of a heartbeat in one group.

    Attributes:
        is_changed: whether the others must rebalance (C-339, C-340).
        left_out: topics whose subscription was not taken, since there is no room for it.
    """

    is_changed: bool
    left_out: list[str]


class ConsumerMembers:
    """Consumer groups with at least one member."""

    def __init__(self, bytes_max: int = SUBSCRIPTIONS_BYTES_MAX) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._bytes_max = bytes_max
        self._bytes = 0

    @property
    def room(self) -> Room:
        """How many groups have members, and may have."""
        return Room("consumer groups with members", len(self._groups), GROUPS_MAX)

    def group(self, name: str) -> ConsumerGroup | None:
        """Return a group; None when it has no members."""
        return self._groups.get(name)

    def names(self) -> list[str]:
        """Groups with members."""
        return list(self._groups)

    def register(self, data: ConsumerData, member: Member) -> Registered:
        """Take a heartbeat.

        Raises:
            BrokerError: the group is new, and as many have members as the broker keeps; or a topic
                has a name no topic can have.
        """
        check_room("consumer group", data.group_name, self._groups, GROUPS_MAX, remedy=_LEAVE_SOME)
        for subscription in data.subscription_data_set:
            check_kept("a topic", subscription.topic)
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(member.channel)
        group.members[member.channel] = member
        member.since_ms = member.heard_ms if known is None else known.since_ms
        member.is_twin_told = known is not None and known.is_twin_told
        is_new = known is None or known.client_id != member.client_id
        is_resubscribed, left_out = self._merge(group.subscriptions, data.subscription_data_set)
        return Registered(is_new or is_resubscribed, left_out)

    def _merge(
        self, known: dict[str, SubscriptionData], given: Iterable[SubscriptionData]
    ) -> Registered:
        changed, left_out = False, []
        wanted = {data.topic: data for data in given}
        for topic in [t for t in known if t not in wanted]:
            self._bytes -= _bytes_of(known.pop(topic))
            changed = True
        for topic, data in wanted.items():
            old = known.get(topic)
            if old is not None and data.sub_version <= old.sub_version:
                continue
            taken = self._bytes + _bytes_of(data) - (_bytes_of(old) if old is not None else 0)
            if taken > self._bytes_max:
                left_out.append(topic)
                continue
            self._bytes = taken
            known[topic] = data
            changed = changed or old is None
        return Registered(changed, left_out)

    def twin(self, name: str, member: Member) -> Member | None:
        """Return another process that has the client id of ``member``; None where it is alone.

        A client that connected again has an id twice too, but its old channel is silent since then.
        """
        group = self._groups.get(name)
        for other in group.members.values() if group else ():
            if (
                other.client_id == member.client_id
                and other.channel != member.channel
                and other.heard_ms > member.since_ms
            ):
                return other
        return None

    def unregister(self, name: str, channel: Hashable) -> list[Hashable]:
        """Remove one member of one group; return the channels of the remaining ones (C-344)."""
        group = self._groups.get(name)
        if group is None or group.members.pop(channel, None) is None:
            return []
        if not group.members:
            del self._groups[name]
            self._bytes -= sum(map(_bytes_of, group.subscriptions.values()))
        return group.channels()

    def groups_of_channel(self, channel: Hashable) -> list[str]:
        """The groups a channel is a member of."""
        return [group.name for group in self._groups.values() if channel in group.members]

    def expire(
        self, now_ms: float, since_ms: float = -math.inf
    ) -> tuple[list[Hashable], dict[str, list[Hashable]]]:
        """Remove members silent for 120 s; return their channels and, by group, those that remain.

        Args:
            now_ms: the time.
            since_ms: silence before that does not count.
        """
        late = [
            (group.name, channel)
            for group in self._groups.values()
            for channel, member in group.members.items()
            if now_ms - max(member.heard_ms, since_ms) > CLIENT_EXPIRED_MS
        ]
        stay = {name: self.unregister(name, channel) for name, channel in late}
        return [channel for _, channel in late], stay

    def subscription(self, name: str, topic: str) -> SubscriptionData | None:
        """Return a group's subscription of a topic."""
        group = self._groups.get(name)
        return group.subscriptions.get(topic) if group else None

    def groups_of(self, topic: str) -> set[str]:
        """The groups whose members subscribe a topic (C-345)."""
        return {g.name for g in self._groups.values() if topic in g.subscriptions}


def _bytes_of(data: SubscriptionData) -> int:
    """Return the memory a subscription takes: nearly all of it is what its client chose."""
    parts = (data.topic, data.sub_string, data.expression_type, data.tags_set, data.code_set)
    every = chain((data,), parts, data.tags_set, data.code_set)
    return sum(part.__sizeof__() for part in every)


class ProducerMembers:
    """Producer groups with at least one member (C-348)."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Hashable, Member]] = {}
        self._clients: dict[str, Member] = {}
        """By client id; those with a group alone, since clients name their ids themselves."""
        self._groups_by_id: dict[tuple[Hashable, str], int] = {}
        """In how many groups a channel has a client id."""

    @property
    def room(self) -> Room:
        """How many groups have members, and may have."""
        return Room("producer groups with members", len(self._groups), GROUPS_MAX)

    def register(self, group: str, member: Member) -> None:
        """Take a heartbeat; the id of a client stays with the account that has it.

        A channel is one member of a group: another client id replaces the one before.

        Raises:
            BrokerError: the group is new, and as many have members as the broker keeps.
        """
        check_room("producer group", group, self._groups, GROUPS_MAX, remedy=_LEAVE_SOME)
        members = self._groups.setdefault(group, {})
        before = members.get(member.channel)
        members[member.channel] = member
        key = (member.channel, member.client_id)
        self._groups_by_id[key] = self._groups_by_id.get(key, 0) + 1
        known = self._clients.get(member.client_id)
        if known is None or known.access_key == member.access_key:
            self._clients[member.client_id] = member
        if before is not None:
            self._left(before)

    def unregister(self, group: str, channel: Hashable) -> None:
        """Remove one member of one group."""
        members = self._groups.get(group, {})
        member = members.pop(channel, None)
        if not members:
            self._groups.pop(group, None)
        if member is not None:
            self._left(member)

    def _left(self, member: Member) -> None:
        """Note that a member left one group; without any its client is not reached any more."""
        key = (member.channel, member.client_id)
        groups = self._groups_by_id.pop(key) - 1
        if groups:
            self._groups_by_id[key] = groups
            return
        known = self._clients.get(member.client_id)
        if known is not None and known.channel == member.channel:
            del self._clients[member.client_id]

    def channel_closed(self, channel: Hashable) -> None:
        """Remove a channel from every group."""
        for group in [g for g, members in self._groups.items() if channel in members]:
            self.unregister(group, channel)

    def expire(self, now_ms: float, since_ms: float = -math.inf) -> list[Hashable]:
        """Remove members silent for 120 s, of that which counts; return their channels."""
        late = [
            (group, channel)
            for group, members in self._groups.items()
            for channel, member in members.items()
            if now_ms - max(member.heard_ms, since_ms) > CLIENT_EXPIRED_MS
        ]
        for group, channel in late:
            self.unregister(group, channel)
        return [channel for _, channel in late]

    def members(self, group: str) -> list[Member]:
        """Return the members of a group."""
        return list(self._groups.get(group, {}).values())

    def names(self) -> list[str]:
        """Groups with members."""
        return list(self._groups)

    def channel_for(
        self, question: int, group: str, is_usable: Callable[[Member], bool]
    ) -> Hashable | None:
        """Return a usable member's channel, for each further question another; None without any.

        Of a client that connected again only the new channel counts: the old one may be silent.
        """
        channels = [
            member.channel
            for member in self.members(group)
            if not self._is_left(member) and is_usable(member)
        ]
        return channels[question % len(channels)] if channels else None

    def _is_left(self, member: Member) -> bool:
        newest = self._clients.get(member.client_id, member)
        return newest.channel != member.channel and newest.access_key == member.access_key

    def channel_of(self, client_id: str) -> Hashable | None:
        """Return the newest channel of a client, or None."""
        known = self._clients.get(client_id)
        return None if known is None else known.channel
