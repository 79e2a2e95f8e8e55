"""The blocking side of the transport, in one place to import from.

Law: re-exports only.
"""

from rocketstream.transport.blocking_connection import BlockingConnection, wait_for_answers
from rocketstream.transport.blocking_pool import BlockingPool

__all__ = ["BlockingConnection", "BlockingPool", "wait_for_answers"]
