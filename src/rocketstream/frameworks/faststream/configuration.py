"""The settings a broker, its routers and its endpoints share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from faststream._internal.configs import BrokerConfig
from faststream._internal.logger import DefaultLoggerStorage
from faststream._internal.logger.logging import get_broker_logger

from rocketstream.client.config import ClientConfig
from rocketstream.frameworks.faststream.producer import RocketMQProducer

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

_MESSAGE_ID_CHARS = 32


@dataclass(kw_only=True)
class RocketMQConfig(BrokerConfig):
    """FastStream's own settings of a broker, and what subscribers need to consume.

    A router has one too, whose ``producer`` and ``client`` are not asked: its broker's are.
    """

    producer: RocketMQProducer = field(default_factory=lambda: RocketMQProducer(None, None))
    client: ClientConfig = field(default_factory=ClientConfig)
    is_simulated: bool = False
    """Under a test broker: subscribers join no group."""


class AccessLog(DefaultLoggerStorage):
    """Makes the logger of messages that come and go, ``faststream.access.rocketmq``."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_chars = 4
        self._group_chars = 4

    def register_subscriber(self, params: dict[str, str]) -> None:
        """Make room for the names of a subscriber."""
        self._topic_chars = max(self._topic_chars, len(params.get("topic", "")))
        self._group_chars = max(self._group_chars, len(params.get("group", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger, made at the first call."""
        found = self._get_logger_ref()
        if found is None:
            columns = (
                f"%(topic)-{self._topic_chars}s | %(group)-{self._group_chars}s | "
                f"%(message_id)-{_MESSAGE_ID_CHARS}s"
            )
            found = get_broker_logger(
                name="rocketmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=_MESSAGE_ID_CHARS,
                fmt=f"%(asctime)s %(levelname)-8s - {columns} - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(found)
        return found
