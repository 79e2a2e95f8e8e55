"""The state a Spark Python worker keeps between tasks: connections, listeners, and a tidy heap.

Law: the only module with state that outlives a task. The state is kept on a module of its own in
``sys.modules``, because a package shipped by value gets new globals with every task.
"""

from __future__ import annotations

import gc
import os
import sys
import types
from collections.abc import Callable
from typing import Any, Final, TypeVar

from rocketstream.protocol.compression import load_codecs
from rocketstream.spark.connections import file_marks, new_pool, tls_settings
from rocketstream.spark.options import ConnectOptions
from rocketstream.transport.blocking_pool import BlockingPool

T = TypeVar("T")

_KEEPER_NAME: Final = "_rocketstream_spark_worker"
_POOLS_MAX: Final = 8
"""Of each process. Session tokens that are renewed every hour make a new one each time."""


def prepare() -> None:
    """Exempt all loaded objects from garbage collection, once per process.

    PySpark's daemon collects garbage after every task, which takes 25 ms with pyarrow loaded;
    frozen objects are not visited. Modules imported at first use are used beforehand: pyarrow's
    first array imports pandas where it is installed, which would cost 18 ms of the gain per task.
    """
    keeper = _keeper()
    if keeper.frozen_pid != os.getpid():
        _import_late_ones()
        gc.collect()
        gc.freeze()
        keeper.frozen_pid = os.getpid()


def pool(options: ConnectOptions) -> BlockingPool:
    """Return this process's connections for some options; they stay open between tasks.

    Where a file of keys or certificates was replaced they are others: a worker lives for days.
    Beyond some, those made first are kept no more; a task that still has them goes on with them.
    """
    secrets = (
        options.access_key,
        options.secret_key,
        options.security_token,
        options.key_file,
    )
    key = (os.getpid(), options.connect_timeout_ms, secrets, tls_settings(options))
    pools: dict[Any, tuple[object, BlockingPool]] = _keeper().pools
    marks = file_marks(options)
    known, found = pools.get(key, (None, None))
    if found is not None and known == marks:
        return found
    made = new_pool(options)
    pools[key] = (marks, made)
    if found is not None:
        found.close()
    for old in [each for each in pools if each[0] == key[0]][:-_POOLS_MAX]:
        pools.pop(old)[1].close_idle()
    return made


def close_pools() -> None:
    """Close this process's connections."""
    pools: dict[Any, tuple[object, BlockingPool]] = _keeper().pools
    for key in [key for key in pools if key[0] == os.getpid()]:
        pools.pop(key)[1].close()


def kept(name: str, key: str, make: Callable[[], T], most: int) -> T:
    """Return a value this process keeps between tasks, made at the first call.

    Args:
        name: the kind of the value.
        key: identifies it within its kind.
        make: makes the value.
        most: how many of its kind are kept; beyond that the oldest is dropped.
    """
    things: dict[str, Any] = _keeper().things.setdefault((os.getpid(), name), {})
    if key not in things:
        if len(things) >= most:
            del things[next(iter(things))]
        things[key] = make()
    found: T = things[key]
    return found


def _import_late_ones() -> None:
    arrow: Any = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.array([0])
    load_codecs()
    # A socket encodes the name of a host so.
    "host".encode("idna")


def _keeper() -> Any:
    keeper: Any = sys.modules.get(_KEEPER_NAME)
    if keeper is None:
        keeper = types.ModuleType(_KEEPER_NAME)
        keeper.pools = {}
        keeper.frozen_pid = 0
        keeper.things = {}
        sys.modules[_KEEPER_NAME] = keeper
    return keeper
