"""Locks of queues at their brokers, so that only one program works on them.

The locks are the broker's own queue locks (codes 41 and 42), which end a minute after a crash.
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
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.config import new_uuid
from rocketstream.errors import ClientStateError, RocketMQError
from rocketstream.limits import LOCK_GRACE_MS
from rocketstream.model import MessageQueue

logger = logging.getLogger("rocketstream.admin")

RENEWED_AFTER_MS: Final = 1_000
"""How soon a lost lock is noticed: an Apache broker that restarts forgets its locks."""
TRUSTED_MS: Final = LOCK_GRACE_MS
"""Half of the time brokers grant, the time for which consumers trust a lock too."""
SLICE_MS: Final = 10_000
_ASKED_MAX: Final = 3
_AGAIN_AFTER_S: Final = 0.2


class QueueLock:
    """Queues locked for this program; used by one thread, a context manager.

    Args:
        wire: asks brokers.
        client: knows the addresses of the brokers.
        group: the group in whose name the queues are locked; others that use the same group are
            kept out.
        queues: the queues to lock.
        what: the work on the queues, for error texts: "a redrive of billing".
        clock: measures the age of the locks.

    Raises:
        ClientStateError: on entry: another client holds one of the queues.
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
        # Everybody locks in the same order: of two programs one gets the first broker's queues.
        for queue in sorted(queues):
            self._by_broker.setdefault(queue.broker_name, set()).add(queue)
        self._renewed_at = 0.0
        self.is_lost = False
        """Whether others may have the queues by now: then nothing may be done with them any more.
        """

    def __enter__(self) -> Self:
        try:
            for _ in range(_ASKED_MAX):
                if self._take():
                    return self
                # A broker that was slow to record a lock grants it when it is asked again.
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
        """Renew locks that are no longer fresh; call it before anything is done with the queues.

        Raises:
            ClientStateError: another client has one of the queues, or may have had it meanwhile.
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
        """Wait, renewing the locks meanwhile; raises as ``keep`` does."""
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
