"""Tools for testing programs that talk to RocketMQ: a hand-moved clock, a faulty network, leaks.

Law: never imported by the rest of the package. The pytest fixtures are in ``pytest_plugin``.
"""

from rocketstream.testing.clock import ManualClock
from rocketstream.testing.leaks import LeakCheck
from rocketstream.testing.proxy import FaultProxy

__all__ = ["FaultProxy", "LeakCheck", "ManualClock"]
