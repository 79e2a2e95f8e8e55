"""The search for a message that was already sent for a dead letter.

Law: a letter counts as sent only where its message was seen; a letter that is not found is sent, so
none is ever left out.
"""

from __future__ import annotations

from typing import Final

from rocketstream.admin.core.again import (
    PROPERTY_REDRIVEN_BY,
    PROPERTY_REDRIVEN_FROM,
    place_of,
    target_topic,
)
from rocketstream.admin.wire.looking import AdminWire
from rocketstream.errors import RouteNotFoundError
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import PROPERTY_UNIQ_KEY

_COPIES_MAX: Final = 32


class SentBefore:
    """Looks for letters where a redrive would send them; used by one thread.

    A redrive sends the letters of a queue one by one. So after a crash the letters sent behind the
    kept place come first, without a gap: from the first letter that is not found on, no more
    questions are asked.

    Args:
        wire: asks brokers.
        group: the group whose dead letters are sent.
        to: the target of the redrive; None for each letter's origin.
        by: the place named for the redrive: only letters it sent itself count; None counts all.
        others: whether redrives with other selections may have sent some letters in between; if so
            every letter is looked for.
    """

    def __init__(
        self, wire: AdminWire, group: str, to: str | None, by: str | None, *, others: bool
    ) -> None:
        self._wire = wire
        self._group = group
        self._to = to
        self._by = by
        self._every = others and by is None
        self._new: set[tuple[str, int]] = set()
        self._masters: dict[str, list[str]] = {}

    def has(self, letter: MessageExt) -> bool:
        """Return whether the letter was sent; letters of a queue come in order.

        Raises:
            TransportError, BrokerError: a broker of the target could not be asked.
        """
        queue = (letter.broker_name, letter.queue_id)
        if queue in self._new:
            return False
        if self._is_sent(letter):
            return True
        if not self._every:
            self._new.add(queue)
        return False

    def _is_sent(self, letter: MessageExt) -> bool:
        topic, unique = target_topic(letter, self._to), letter.properties.get(PROPERTY_UNIQ_KEY)
        if topic is None or unique is None:
            return False
        place = place_of(self._group, letter)
        return any(
            message.properties.get(PROPERTY_REDRIVEN_FROM) == place
            and (self._by is None or message.properties.get(PROPERTY_REDRIVEN_BY) == self._by)
            for address in self._addresses(topic)
            for message in self._wire.messages_by_key(
                address, topic, unique, _COPIES_MAX, unique=True
            )
        )

    def _addresses(self, topic: str) -> list[str]:
        found = self._masters.get(topic)
        if found is None:
            try:
                brokers = self._wire.route(topic).broker_datas
            except RouteNotFoundError:  # the error is raised when the letter is sent
                brokers = []
            found = [data.broker_addrs[0] for data in brokers if 0 in data.broker_addrs]
            self._masters[topic] = found
        return found
