"""Tools for testing programs that talk to RocketMQ: a hand-moved clock, a faulty network, leaks.

Law: never imported by the rest of the package. The pytest fixtures are in ``pytest_plugin``, which
every pytest run of an environment loads: nothing heavy is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketstream.testing.clock import ManualClock
    from rocketstream.testing.leaks import LeakCheck
    from rocketstream.testing.proxy import FaultProxy

__all__ = ["FaultProxy", "LeakCheck", "ManualClock"]

_HOMES = {"FaultProxy": "proxy", "LeakCheck": "leaks", "ManualClock": "clock"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
