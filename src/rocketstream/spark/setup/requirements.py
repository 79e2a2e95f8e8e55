"""What the source needs from the Python it runs in, said in words.

Law: imports nothing that might be missing.
"""

from __future__ import annotations

import importlib.metadata
from typing import Final

from rocketstream.errors import NotSupportedError

_NEEDED: Final = {"numpy": 1, "pyarrow": 19}
"""Package and lowest major version; pyarrow's view types can be built from buffers since 19."""


def check_requirements() -> None:
    """Refuse a Python that cannot run the source; Spark itself would only lose the connection.

    Raises:
        NotSupportedError: numpy or pyarrow is missing or too old.
    """
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
