"""Settings of the consumer of lite topics, and where a group begins in one.

Law: pure values. Nothing here is of the lite pull consumer, which consumes ordinary topics.
"""

from __future__ import annotations

from typing import ClassVar, Self

from rocketstream import limits
from rocketstream.client.core.kinds import check_natural, check_own_group
from rocketstream.late import dataclass
from rocketstream.protocol.bodies import LiteOffsetData
from rocketstream.protocol.names import DEFAULT_CONSUMER_GROUP, check_consumer_group
from rocketstream.settings import check_values, setting

_POLICY, _OFFSET, _TAIL = "POLICY", "OFFSET", "TAIL_N"


@dataclass(frozen=True, slots=True)
class OffsetOption:
    """Where a group goes on in a lite topic it subscribes; Java's class of the same name.

    Each moves the group when it is subscribed, whatever it consumed before. Without any it goes on
    where it was, and where it never was it begins at the oldest message.

    Attributes:
        kind: POLICY, OFFSET or TAIL_N.
        value: of a policy 0, 1 or 2; else an offset, or a number of messages.
    """

    LAST_OFFSET: ClassVar[OffsetOption]
    """Where it was; where it never was, the broker chooses when something arrives: at its end."""
    MIN_OFFSET: ClassVar[OffsetOption]
    """The oldest message."""
    MAX_OFFSET: ClassVar[OffsetOption]
    """Behind the newest message."""

    kind: str
    value: int

    @classmethod
    def of_offset(cls, offset: int) -> Self:
        """Go on at an offset of the lite topic.

        Raises:
            ConfigurationError: not a whole number from 0 on.
        """
        check_natural("offset", offset)
        return cls(_OFFSET, offset)

    @classmethod
    def of_tail_n(cls, messages: int) -> Self:
        """Go back so many messages, where the group was before; else as LAST_OFFSET.

        Raises:
            ConfigurationError: not a whole number from 0 on.
        """
        check_natural("messages", messages)
        return cls(_TAIL, messages)

    def data(self) -> LiteOffsetData:
        """Return what is sent to a broker."""
        return LiteOffsetData(self.kind, self.value)


OffsetOption.LAST_OFFSET = OffsetOption(_POLICY, 0)
OffsetOption.MIN_OFFSET = OffsetOption(_POLICY, 1)
OffsetOption.MAX_OFFSET = OffsetOption(_POLICY, 2)


@dataclass(frozen=True, slots=True)
class LitePushConsumerSettings:
    """Settings of a consumer of lite topics; where Java's has one of a kind, it is named so.

    Attributes:
        consumer_group: 1 to 248 of percent sign, bar, letters, digits, underscore, hyphen.
        consume_thread_max: most listener calls at once, each for another lite topic.
        consume_message_batch_max_size: most messages of one listener call, all of one lite topic.
        pull_batch_size: most messages of one answer; brokers give 32 at most.
        max_cache_message_count: messages received and not finished, beyond which none is asked for.
        max_cache_message_size: the same in MiB of bodies.
        invisible_ms: how long a received message is hidden from the other members. It is renewed
            while this consumer lives; after it died the message comes again within this time.
        suspend_ms: how long what a listener failed stays hidden, with what follows it in its lite
            topic, before it comes again.
        poll_ms: how long a broker holds a request that finds nothing.
        consume_timeout_minutes: a listener call that takes longer is no longer waited for: its
            messages are hidden no more, and may come to another member.
        await_termination_ms_when_shutdown: how long ``shutdown`` waits for running listeners.
    """

    consumer_group: str
    consume_thread_max: int = setting(
        20, low=1, high=1000, unit="threads", java="consumptionThreadCount"
    )
    consume_message_batch_max_size: int = setting(1, low=1, high=32, unit="messages")
    pull_batch_size: int = setting(
        32, low=1, high=limits.LITE_POP_MESSAGES_MAX, unit="messages", java=""
    )
    max_cache_message_count: int = setting(1_024, low=32, high=65_535, unit="messages")
    max_cache_message_size: int = setting(
        64, low=1, high=1024, unit="MiB", java="maxCacheMessageSizeInBytes"
    )
    invisible_ms: int = setting(60_000, low=10_000, high=43_200_000, java="invisibleDuration")
    suspend_ms: int = setting(1_000, low=10, high=43_200_000, java="")
    poll_ms: int = setting(15_000, low=1_000, high=60_000, java="")
    consume_timeout_minutes: float = setting(15, above=0)
    await_termination_ms_when_shutdown: int = setting(30_000, low=0, java="")

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value that cannot be used; the text names the setting, what is
                accepted and what was given.
        """
        check_consumer_group(self.consumer_group)
        check_own_group(self.consumer_group, DEFAULT_CONSUMER_GROUP, java="consumerGroup")
        check_values(self)
