"""A listener in an option: pickled where the query is made, unpickled in tasks.

The pickle is made by Spark's own cloudpickle; it holds the user's own code and runs with the user's
rights.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import pickle
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

from pyspark import cloudpickle

from rocketstream import limits
from rocketstream.client.consumer.listener import Listener, listener_of
from rocketstream.errors import ConfigurationError
from rocketstream.spark.setup.shipping import make_constants_picklable
from rocketstream.spark.worker import kept

_OURS: Final = ("rocketstream", "__main__")
_KIND: Final = "listeners"


def pack(listener: object, *, orderly: bool) -> str:
    """Return a listener as the text of option ``listener``.

    Its own module travels with it by value, unless it is installed (in ``site-packages``), so
    executors need not have it. Modules that it imports are imported there.

    Raises:
        ConfigurationError: it is not a listener, or cannot be pickled; the error says what to do.
    """
    listener_of(listener, orderly=orderly)
    make_constants_picklable()
    module = _travelling_module(listener)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        data = cloudpickle.dumps(listener)
    except Exception as error:
        raise ConfigurationError(
            f"the listener {listener!r} cannot be pickled for Spark's tasks: {error}. What it uses "
            "(connections, locks, clients) must be made where it is called: in the function, or "
            "once per process in a functools.cache of a function without arguments",
        ) from error
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)
    return base64.b85encode(data).decode("ascii")


def unpack(text: str, *, orderly: bool) -> Listener:
    """Return the listener from a text made by ``pack``; unpickled once per Python process.

    State that a listener keeps in its module or object outlives a task, as in any consumer.

    Raises:
        ConfigurationError: the text is not one of ``pack``, or the listener needs a package that is
            not installed here.
    """
    key = hashlib.sha256(text.encode()).hexdigest() + str(orderly)
    return kept(
        _KIND, key, lambda: listener_of(_loaded(text), orderly=orderly),
        limits.SPARK_LISTENERS_KEPT_MAX,
    )  # fmt: skip


def _loaded(text: str) -> Any:
    try:
        return cloudpickle.loads(base64.b85decode(text))
    except (ValueError, binascii.Error, EOFError, pickle.UnpicklingError) as error:
        raise ConfigurationError(
            "option 'listener' holds no listener; rocketstream.spark.consume sets it"
        ) from error
    except ImportError as error:
        raise ConfigurationError(
            f"the listener needs a module that Spark's Python workers do not have: {error}. "
            "Install it there, or define what is needed beside the listener",
        ) from error


def _travelling_module(listener: object) -> Any:
    """Return the module to send along; None where there is none or the other side has it."""
    while isinstance(listener, functools.partial):  # its own module is Python's
        listener = listener.func
    name = getattr(listener, "__module__", None) or type(listener).__module__
    module = sys.modules.get(name)
    if module is None or name.partition(".")[0] in _OURS:
        return None
    place = getattr(module, "__file__", None)
    if place is None or name in cloudpickle.list_registry_pickle_by_value():
        return None
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    parents = set(Path(place).resolve().parents)
    return None if parents & installed - {Path(sys.prefix).resolve()} else module
