"""Holding queues at their brokers, so that one program alone works on them.

Law: blocking, by the broker's own queue locks (codes 41 and 42), which a crash gives back after a
minute; what is done with the queues is the caller's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from types import TracebackType
from typing import Final, Self

from rocketstream._util.clock import Clock
from rocketstream._util.stopping import check_stop, wait_unless_stopped
from rocketstream.admin.wire.looking import AdminWire
from rocketstream.client.blocking import BlockingAdminClient
from rocketstream.client.config import new_uuid
from rocketstream.errors import ClientStateError, RocketMQError
from rocketstream.limits import LOCK_GRACE_MS
from rocketstream.model import MessageQueue

logger = logging.getLogger("rocketstream.admin")

RENEWED_AFTER_MS: Final = 1_000
"""So soon it is noticed that another has them: a broker of Apache's that restarts forgets locks."""
TRUSTED_MS: Final = LOCK_GRACE_MS
"""Half of what brokers grant, as consumers trust a lock: nobody else has it until then."""
SLICE_MS: Final = 10_000
_ASKED_MAX: Final = 3
_AGAIN_AFTER_S: Final = 0.2


class QueueHold:
    """Queues that are this program's as long as it says so; used by one thread, a context manager.

    Args:
        wire: asks brokers.
        client: knows where they are.
        group: in whose name the queues are held; others that use the same one are kept out.
        queues: which.
        what: what is done with them, for messages: "a redrive of billing".
        clock: ages.

    Raises:
        ClientStateError: on entry: somebody else holds one of them.
        TransportError, BrokerError, RouteNotFoundError: on entry: a broker did not answer.
    """

    def __init__(
        self,
        wire: AdminWire,
        client: BlockingAdminClient,
        group: str,
        queues: Collection[MessageQueue],
        what: str,
        clock: Clock,
    ) -> None:
        self._wire = wire
        self._client = client
        self._group = group
        self._what = what
        self._clock = clock
        self._id = new_uuid()
        self._by_broker: dict[str, set[MessageQueue]] = {}
        # In one order for everybody: of two that begin at once one gets the first broker's queues.
        for queue in sorted(queues):
            self._by_broker.setdefault(queue.broker_name, set()).add(queue)
        self._renewed_at = 0.0
        self.is_lost = False
        """Whether others may have the queues by now: nothing may be done with them any more."""

    def __enter__(self) -> Self:
        try:
            for _ in range(_ASKED_MAX):
                if self._take():
                    return self
                # A broker that was slow to write a lock down grants it when it is asked again.
                threading.Event().wait(_AGAIN_AFTER_S)
        except BaseException:
            self._give_back()
            raise
        self._give_back()
        raise ClientStateError(
            f"{self._what} is under way already: wait for its end, or stop it. After one that "
            "crashed, or a broker that restarted, the brokers keep others out for a minute",
            group=self._group,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._give_back()

    def keep(self) -> None:
        """Renew what is not fresh; call it before anything is done with the queues.

        Raises:
            ClientStateError: somebody else has one of them, or may have had it meanwhile.
            TransportError, BrokerError, RouteNotFoundError: a broker could not be asked.
        """
        check_stop()
        age_ms = self._clock.monotonic_ms() - self._renewed_at
        if age_ms < RENEWED_AFTER_MS and not self.is_lost:
            return
        if self.is_lost or age_ms > TRUSTED_MS or not self._take():
            self.is_lost = True
            raise ClientStateError(
                f"{self._what} has stopped: it stood still for {age_ms / 1000:.0f} s or a broker "
                "restarted, and another one may have gone on in its place. Run it again, it goes "
                "on where it is",
                group=self._group,
            )

    def wait(self, seconds: float) -> None:
        """Wait, and keep the queues meanwhile; raises as ``keep``."""
        end = self._clock.monotonic_ms() + seconds * 1000
        while (left := end - self._clock.monotonic_ms()) > 0:
            wait_unless_stopped(min(left, SLICE_MS) / 1000)
            self.keep()

    def _take(self) -> bool:
        asked_at = self._clock.monotonic_ms()
        for broker_name, queues in self._by_broker.items():
            address = self._client.address(broker_name)
            if not queues <= self._wire.lock(address, self._group, self._id, queues):
                return False
        self._renewed_at = asked_at
        return True

    def _give_back(self) -> None:
        for broker_name, queues in self._by_broker.items():
            try:
                address = self._client.address(broker_name)
                self._wire.unlock(address, self._group, self._id, queues)
            except RocketMQError as error:
                logger.info("queues not given back to broker=%s: %s", broker_name, error)
