"""Sending this package inside a pickle, to Pythons that do not have it.

Law: what cloudpickle needs for that, nothing else. ``addPyFile`` is no way: Spark's streaming
source runner looks for such files in the wrong directory.
"""

from __future__ import annotations

import copyreg
import functools
import struct
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

import rocketstream


def ship_by_value() -> None:
    """Pickle everything of this package by value from now on."""
    make_constants_picklable()
    cloudpickle.register_pickle_by_value(rocketstream)


def make_constants_picklable() -> None:
    """Teach pickle about compiled struct formats and caching functions, which our modules keep.

    Called in every process that pickles the source on: the planner sends it to the executors.
    """
    copyreg.pickle(struct.Struct, _reduce_struct)
    copyreg.pickle(functools._lru_cache_wrapper, _reduce_cached)


def _reduce_struct(compiled: struct.Struct) -> tuple[type[struct.Struct], tuple[str]]:
    return struct.Struct, (compiled.format,)


def _reduce_cached(cached: Any) -> tuple[Callable[..., Any], tuple[Any, int | None, bool]]:
    """By itself a cached function is pickled by its name, which the other side does not have."""
    settings = cached.cache_parameters()
    return _cached_again, (cached.__wrapped__, settings["maxsize"], settings["typed"])


def _cached_again(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)
