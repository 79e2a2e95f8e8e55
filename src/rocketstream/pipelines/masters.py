"""Spark masters, tried before Spark is started.

The check uses the text, the environment, and whether a standalone master's port is open; nothing of
Spark.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Final

from rocketstream.errors import ConfigurationError

_FORMS: Final = (
    r"local(\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\])?",
    r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]",
    r"yarn",
    r"k8s://\S+",
)
_STANDALONE: Final = re.compile(r"spark://(?P<hosts>[^,\s]+:\d+(,[^,\s]+:\d+)*)")
_CONNECT_TIMEOUT_S: Final = 1.5
_YARN_SETTINGS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def check_master(master: str) -> None:
    """Refuse a master that Spark would refuse half a minute later, or would wait for.

    Raises
    ------
    ConfigurationError
        The text is not the URL of a master, nobody listens where a standalone one should, or the
        settings of YARN are not found.
    """
    if master == "yarn" and not any(os.environ.get(name) for name in _YARN_SETTINGS):
        raise ConfigurationError(
            f"master yarn needs {' or '.join(_YARN_SETTINGS)} in the environment: the directory of "
            "the cluster's settings",
            master=master,
        )
    if any(re.fullmatch(form, master) for form in _FORMS):
        return
    found = _STANDALONE.fullmatch(master)
    if found is None:
        raise ConfigurationError(
            f"master is {master!r}; accepted are local[N], local[*], spark://HOST:PORT, yarn, "
            "k8s://URL and local-cluster[WORKERS,CORES,MB]",
            master=master,
        )
    refused = [host for host in found["hosts"].split(",") if not _listens(host)]
    if len(refused) == len(found["hosts"].split(",")):
        raise ConfigurationError(f"no Spark master listens at {', '.join(refused)}", master=master)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S):
            return True
    except (OSError, OverflowError):
        return False
