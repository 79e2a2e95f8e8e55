"""This package inside a pickle, for Pythons that do not have it.

Law: only what Spark's own cloudpickle needs for that is changed; ``pickle`` itself and other
people's objects are left as they are. ``addPyFile`` does not work: Spark's streaming source runner
looks for such files in the wrong directory.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, Final, ParamSpec

from pyspark import cloudpickle

import rocketstream

_PACKAGE: Final = "rocketstream"
"""By name: a function that travels by value takes a module it mentions along, with all in it.
"""


def ship_by_value() -> None:
    """Pickle everything of this package by value from now on."""
    make_constants_picklable()
    cloudpickle.register_pickle_by_value(rocketstream)


def make_constants_picklable() -> None:
    """Teach Spark's pickler about compiled struct formats, caching functions, parameter types.

    All occur as constants of our modules; users keep connections in caching functions. Called in
    every process that pickles the source again, as the planner does for the executors.
    """
    table = cloudpickle.CloudPickler.dispatch_table
    table[struct.Struct] = _reduce_struct
    table[functools._lru_cache_wrapper] = _reduce_cached
    table[ParamSpec] = _reduce_parameters


def _reduce_struct(compiled: struct.Struct) -> tuple[type[struct.Struct], tuple[str]]:
    return struct.Struct, (compiled.format,)


def _reduce_parameters(spec: ParamSpec) -> tuple[type[ParamSpec], tuple[str]]:
    return ParamSpec, (spec.__name__,)


def _reduce_cached(cached: Any) -> Any:
    """Without this a cached function is pickled by its name, which the other side may lack."""
    module = getattr(cached, "__module__", None) or ""
    if module.partition(".")[0] != _PACKAGE and not _travels(module):
        return cached.__reduce__()
    settings = cached.cache_parameters()
    return _cached_again, (cached.__wrapped__, settings["maxsize"], settings["typed"])


def _travels(module: str) -> bool:
    """Whether a module's definitions are pickled by value: the user's program, or by request."""
    parts = module.split(".")
    packages = {".".join(parts[: count + 1]) for count in range(len(parts))}
    return module == "__main__" or bool(packages & cloudpickle.list_registry_pickle_by_value())


def _cached_again(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)
