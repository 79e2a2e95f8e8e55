"""The requirements of the source on the Python it runs in, in words.

Law: imports nothing that might be missing.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Final

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
