"""A broker that gives locks, and an orderly consumer of it."""

from __future__ import annotations

from typing import Any

from rocketstream import MessageQueue, PushConsumer
from rocketstream.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from tests.kits.client.consumers import quick
from tests.kits.client.fake_broker import GROUP, TOPIC, Asked, FakeBroker, ok


class LockingBroker(FakeBroker):
    """Gives every lock, unless told to refuse."""

    def __init__(self, queues: int = 1) -> None:
        super().__init__(queues)
        self.refuses = False
        self.on[LOCK] = self._lock
        self.on[UNLOCK] = lambda _: ok()

    def _lock(self, command: RemotingCommand) -> RemotingCommand:
        asked = LockBatchRequestBody.decode(bytes(command.body))
        held = set() if self.refuses else asked.mq_set
        return RemotingCommand.response(0, body=LockBatchResponseBody(held).encode())

    def locks_asked(self) -> list[set[MessageQueue]]:
        """Return the queues of each request for locks so far."""
        return [locked(each) for each in self.asked(LOCK)]


def locked(asked: Asked) -> set[MessageQueue]:
    return LockBatchRequestBody.decode(bytes(asked.command.body)).mq_set


def consumer(broker: FakeBroker, listener: Any, **settings: Any) -> PushConsumer:
    """Return a started orderly consumer of T."""
    settings.setdefault("suspend_current_queue_time_ms", 10)
    made = PushConsumer(GROUP, config=quick(broker), **settings)
    made.register_message_listener(listener, orderly=True)
    made.subscribe(TOPIC)
    made.start()
    return made


LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
