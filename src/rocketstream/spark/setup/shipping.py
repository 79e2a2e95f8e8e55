"""This package where Spark runs it: the packages it needs there, and itself sent by value.

Law: Spark is imported only to teach its pickler.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import struct
from pathlib import Path
from typing import Any, Final, ParamSpec

from pyspark import cloudpickle

import rocketstream
from rocketstream.errors import NotSupportedError

_NEEDED: Final = {"numpy": 1, "pyarrow": 19}
"""Package and lowest major version; from 19 on pyarrow's view types can be built from buffers."""


_HERE: Final = __file__
"""A constant, so that it is the driver's file name where the package travels by value."""
_AMONG_FILES: Final = re.compile(r"[/\\]userFiles-[0-9a-f-]+[/\\]rocketstream[/\\]")
"""Where Spark puts a folder passed to addPyFile."""


def check_requirements() -> None:
    """Refuse a Python that cannot run the source; Spark itself would only lose the connection.

    Raises:
        NotSupportedError: numpy or pyarrow is missing or too old, or this package was shipped as a
            file, with which no stream can be read.
    """
    check_place(_HERE)
    wrong = []
    for name, least in _NEEDED.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if int(version.split(".")[0]) < least:
            wrong.append(f"{name} is {version}, older than {least}")
    if wrong:
        raise NotSupportedError(
            f"the rocketmq source cannot run in this Python: {'; '.join(wrong)}. Install "
            "rocketstream[spark] for the Python of the driver and of every executor"
        )


def check_place(path: str) -> None:
    """Refuse a package that Spark has shipped as a file.

    In 4.0 to 4.3 Spark's process for a stream's offsets looks for such files in the wrong folder,
    and ends with a ModuleNotFoundError that does not name the cause.

    Args:
        path: the path of a module of this package.

    Raises:
        NotSupportedError: the module is in an archive, or among the files of a Spark application.
    """
    in_archive = any(parent.is_file() for parent in Path(path).parents)
    if in_archive or _AMONG_FILES.search(path):
        raise NotSupportedError(
            "rocketstream was brought along by --py-files or addPyFile, and Spark cannot read a "
            "stream with a source that came so. Install rocketstream[spark] where driver and "
            "executors run, or put it on their PYTHONPATH; or install it for the driver alone and "
            "call rocketstream.spark.register(spark, by_value=True)",
            path=path,
        )


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
