"""Queues whose pulls are answered without getting further: pulled ever less often, logged once.

Law: on the loop; ``core.pull_decision`` decides how long to wait.
"""

from __future__ import annotations

from rocketstream.client.core.pull_decision import STALL_MS_MAX, STALLS_TOLD, Stall
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.model import MessageQueue, PullStatus

QUICK_ANSWER_MS = 100
"""A broker with nothing to tell holds a pull for seconds; one that answers sooner does not hold."""


class StalledQueues:
    """The queues of one consumer whose pulls get no further; false when there is none."""

    def __init__(self, instance: MQClientInstance) -> None:
        self._outages = instance.outages
        self._stalls: dict[MessageQueue, Stall] = {}

    def __bool__(self) -> bool:
        return bool(self._stalls)

    def __contains__(self, mq: MessageQueue) -> bool:
        return mq in self._stalls

    def stood(self, mq: MessageQueue, offset: int, status: PullStatus, address: str) -> int:
        """Count an answer that named no other offset; return the pause before the next pull, ms."""
        stall = self._stalls.setdefault(mq, Stall())
        pause_ms = stall.stood(offset)
        # A broker that holds no pulls is asked less often, but nothing is wrong with its queue.
        if stall.answers == STALLS_TOLD and status is not PullStatus.NO_NEW_MSG:
            self._outages.began(
                ("progress of", mq),
                f"{mq} stays at offset {offset}: {address} answers {status.name} and names no "
                f"other offset; it is pulled every {STALL_MS_MAX} ms. Look at the broker's log, "
                "or move the group to another offset (rocketstream group reset)",
            )
        return pause_ms

    def moved(self, mq: MessageQueue, offset: int | None = None) -> None:
        """End a stall: a pull got to ``offset``; None: its broker holds the pull."""
        stall = self._stalls.get(mq)
        if stall is not None and (offset is None or offset > stall.offset):
            del self._stalls[mq]
            self._outages.worked("progress of", mq)

    def forget(self, mq: MessageQueue) -> None:
        """Forget a queue that is not pulled any more."""
        self._stalls.pop(mq, None)
        self._outages.forget("pull of", mq)
        self._outages.forget("progress of", mq)
