"""Tools for tests: messages and a clock moved by hand, a faulty network, leaks, certificates.

Law: never imported by the rest of the package. The pytest fixtures are in ``pytest_plugin``, which
every pytest run of an environment loads: nothing heavy is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketstream.server.certificates import CertificateFiles, make_test_certificates
    from rocketstream.testing.clock import ManualClock
    from rocketstream.testing.leaks import LeakCheck
    from rocketstream.testing.messages import received_message
    from rocketstream.testing.proxy import FaultProxy

__all__ = [
    "CertificateFiles",
    "FaultProxy",
    "LeakCheck",
    "ManualClock",
    "make_test_certificates",
    "received_message",
]

_HOMES = {
    "CertificateFiles": "rocketstream.server.certificates",
    "FaultProxy": "rocketstream.testing.proxy",
    "LeakCheck": "rocketstream.testing.leaks",
    "ManualClock": "rocketstream.testing.clock",
    "make_test_certificates": "rocketstream.server.certificates",
    "received_message": "rocketstream.testing.messages",
}


if not TYPE_CHECKING:  # else every misspelt name would be an Any to type checkers

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home), name)
