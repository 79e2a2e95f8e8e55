"""The broker: sends, pulls, offsets, members, retries and delays over the store."""

from rocketstream.server.broker.broker import Broker
from rocketstream.server.broker.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
