"""Plain sends that leave as one batch, and what each of them gets of its answer.

Law: no I/O; a message in a batch has the result it would have alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Final

from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.producer.sending import PreparedSend, new_result
from rocketstream.errors import SendError
from rocketstream.model import PROPERTY_WAIT, MessageQueue, SendResult
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.record import encode_batch

Unwrap = Callable[[MessageQueue], MessageQueue]

_WAITS: Final = f"{PROPERTY_WAIT}\x01true\x02"
"""What brokers take for granted, and leave out where they store a message that came alone."""


class GatheredSend(PreparedSend):
    """Messages made ready one by one, as one batch.

    Attributes:
        members: the messages, in their order.
    """

    __slots__ = ("_unwrap", "members")

    def __init__(
        self,
        settings: ProducerSettings,
        members: Sequence[PreparedSend],
        wait: str,
        unwrap: Unwrap | None,
    ) -> None:
        first = members[0]
        super().__init__(
            settings,
            first.topic,
            encode_batch(
                [
                    (each.flag, each.body, each.properties.removeprefix(_WAITS).encode())  # type: ignore[misc]
                    for each in members
                ]
            ),
            "" if wait == "true" else f"{PROPERTY_WAIT}\x01{wait}",
            "",
            first.born_timestamp,
            code=RequestCode.SEND_BATCH_MESSAGE,
        )
        self.members = members
        self._unwrap = unwrap

    def results(self, stored: SendResult) -> list[SendResult]:
        """Return what each of the messages would have got alone.

        Args:
            stored: what the broker answered to the batch: the offset is that of the first. Where
                the queue holds batches as they are (a 5.x topic of that kind) it names one place.
        """
        members, queue = self.members, stored.message_queue
        if self._unwrap is not None:
            queue = self._unwrap(queue)
        places = stored.offset_msg_id.split(",")
        if len(places) != len(members):
            places = [stored.offset_msg_id] * len(members)
        status, offset = stored.send_status, stored.queue_offset
        region, trace_on = stored.region_id, stored.trace_on
        return [
            new_result(status, each.msg_id, place, queue, offset + index, region, trace_on)
            for index, (each, place) in enumerate(zip(members, places, strict=True))
        ]


def errors_of(error: SendError, count: int) -> list[SendError]:
    """Return an error of its own for each of some messages: whoever raises one writes into it."""
    errors = [error]
    for _ in range(count - 1):
        own = copy.copy(error)
        own.parameters = dict(error.parameters)
        own.__cause__ = error.__cause__
        errors.append(own)
    return errors
