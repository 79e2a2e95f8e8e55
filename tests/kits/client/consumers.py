"""Consumers of a broker of the test, quick to persist and to retry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rocketstream import (
    ClientConfig,
    LitePullConsumer,
    MessageQueue,
    OffsetStore,
    PushConsumer,
    ReadOffsetType,
)
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker


def quick(broker: FakeBroker) -> ClientConfig:
    return ClientConfig(
        namesrv_addr=broker.address,
        persist_consumer_offset_interval_ms=20,
        pull_time_delay_ms_when_exception=20,
    )


def made(broker: FakeBroker, **settings: Any) -> LitePullConsumer:
    return LitePullConsumer(GROUP, config=quick(broker), **settings)


def lite(broker: FakeBroker, expression: str = "*", **settings: Any) -> LitePullConsumer:
    """Return a started consumer of T."""
    consumer = made(broker, **settings)
    consumer.subscribe(TOPIC, expression)
    consumer.start()
    return consumer


def started(
    broker: FakeBroker, listener: Any, expression: Any = "*", **settings: Any
) -> PushConsumer:
    """Return a started consumer of T."""
    consumer = PushConsumer(GROUP, config=quick(broker), listener=listener, **settings)
    consumer.subscribe(TOPIC, expression)
    consumer.start()
    return consumer


class Shelf(OffsetStore):
    """A store of offsets of the user's own."""

    def __init__(self) -> None:
        self.noted: dict[MessageQueue, int] = {}
        self.kept: dict[MessageQueue, int] = {}

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool = True) -> None:
        self.noted[mq] = max(self.noted.get(mq, 0), offset) if increase_only else offset

    def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        if read_type is ReadOffsetType.READ_FROM_STORE:
            return self.kept.get(mq, -1)
        return self.noted.get(mq, -1)

    def persist_all(self, mqs: Collection[MessageQueue]) -> None:
        self.kept.update((mq, self.noted[mq]) for mq in mqs if mq in self.noted)

    def remove_offset(self, mq: MessageQueue) -> None:
        self.noted.pop(mq, None)

    def clone_offset_table(self, topic: str | None = None) -> Mapping[MessageQueue, int]:
        return dict(self.noted)
