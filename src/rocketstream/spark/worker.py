"""What a Spark Python worker keeps between tasks: connections, and a tidy heap.

Law: the only module with state that outlives a task. It is kept on a module of its own in
``sys.modules``: a package shipped by value gets new globals with every task.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import types
from typing import Any, Final

from rocketstream._util.clock import Clock
from rocketstream.client.blocking import signer
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.tls import tls_context, tls_settings
from rocketstream.transport.blocking import BlockingPool

_KEEPER_NAME: Final = "_rocketstream_spark_worker"


def prepare() -> None:
    """Move what is loaded out of the garbage collector's sight, once per process.

    PySpark's daemon collects garbage after every task, 25 ms with pyarrow loaded; frozen objects
    are not visited.
    """
    keeper = _keeper()
    if keeper.frozen_pid != os.getpid():
        gc.collect()
        gc.freeze()
        keeper.frozen_pid = os.getpid()


def pool(options: ReadOptions) -> BlockingPool:
    """Return this process's connections for some options; they stay open between tasks."""
    secrets = (options.access_key, options.secret_key, options.security_token)
    key = (os.getpid(), options.connect_timeout_ms, secrets, tls_settings(options))
    pools: dict[Any, BlockingPool] = _keeper().pools
    found = pools.get(key)
    if found is None:
        found = pools[key] = new_pool(options)
    return found


def new_pool(options: ReadOptions) -> BlockingPool:
    """Return connections for some options; close it."""
    secrets = (options.access_key, options.secret_key, options.security_token)
    return BlockingPool(
        connect_timeout_ms=options.connect_timeout_ms,
        ssl_context=tls_context(options),
        before_request=signer(*secrets),
    )


def close_pools() -> None:
    """Close this process's connections."""
    pools: dict[Any, BlockingPool] = _keeper().pools
    for key in [key for key in pools if key[0] == os.getpid()]:
        pools.pop(key).close()


def _keeper() -> Any:
    keeper: Any = sys.modules.get(_KEEPER_NAME)
    if keeper is None:
        keeper = types.ModuleType(_KEEPER_NAME)
        keeper.pools = {}
        keeper.frozen_pid = 0
        sys.modules[_KEEPER_NAME] = keeper
    return keeper


class Patience:
    """Bounds how long something that may pass is waited for.

    Args:
        timeout_ms: from the first failure after a success.
        clock: measures it.
    """

    def __init__(self, timeout_ms: float, clock: Clock) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._since: float | None = None
        self._pause_ms = 0.0
        self._never = threading.Event()

    def succeeded(self) -> None:
        """Begin anew with the next failure."""
        self._since = None
        self._pause_ms = 0.0

    def exhausted(self) -> bool:
        """Note a failure; True when there were only failures for too long."""
        now = self._clock.monotonic_ms()
        if self._since is None:
            self._since = now
        return now - self._since >= self._timeout_ms

    def pause(self) -> None:
        """Wait a little, longer each time: 50 ms to 1 s."""
        self._pause_ms = min(1_000.0, self._pause_ms * 2 or 50.0)
        self._never.wait(self._pause_ms / 1000)
