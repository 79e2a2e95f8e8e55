"""The blocking side of the transport, in one place to import from.

Law: re-exports only.
"""

from rocketstream.transport.blocking_connection import BlockingConnection
from rocketstream.transport.blocking_pool import BlockingPool
from rocketstream.transport.blocking_wait import wait_for_answers

__all__ = ["BlockingConnection", "BlockingPool", "wait_for_answers"]
