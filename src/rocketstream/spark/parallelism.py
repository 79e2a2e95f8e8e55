"""The number of tasks Spark runs at a time, found out where no Spark can be asked.

The command that started the driver's JVM and Spark's own file of defaults are read here. Where a
read is planned PySpark gives neither configuration nor context: the planner and the source runner
are processes of their own, without a gateway. But they are children of the JVM, whose command
carries what a session was built with.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

_ANCESTORS_MAX: Final = 8
_LOCAL: Final = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*[0-9]+\s*)?\])?", re.ASCII)
_LOCAL_CLUSTER: Final = re.compile(
    r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*[0-9]+\s*\]", re.ASCII
)
_FLAGS: Final = {
    "--master": "spark.master",
    "--num-executors": "spark.executor.instances",
    "--executor-cores": "spark.executor.cores",
    "--total-executor-cores": "spark.cores.max",
}
_PROPERTIES_FILE: Final = "--properties-file"
_ON_CLUSTERS_MIN: Final = 2
"""The least Spark itself assumes for a cluster."""


def default_parallelism() -> int | None:
    """Return Spark's default parallelism as far as it can be known here; None where it cannot.

    It is known for ``spark.default.parallelism``, ``local[N]``, and clusters of a fixed size. It is
    unknown for clusters that grow on demand, for sessions that joined a JVM with other settings,
    and on systems without ``/proc``.
    """
    command = _driver_command()
    if command is None:
        return None
    directory = os.environ.get("SPARK_CONF_DIR", "")
    defaults = _properties(Path(directory, "spark-defaults.conf")) if directory else {}
    given = settings(command)
    chosen = given.pop(_PROPERTIES_FILE, None)
    if chosen is not None:
        defaults |= _properties(Path(chosen))
    return parallelism(defaults | given, os.cpu_count() or 1)


def parallelism(conf: Mapping[str, str], cores: int) -> int | None:
    """Return Spark's default parallelism under some settings; None for unknown.

    Args:
        conf: settings by name.
        cores: the number of cores of the driver's machine, which ``local[*]`` means.
    """
    if (given := _number(conf, "spark.default.parallelism")) is not None:
        return given
    master = conf.get("spark.master", "").strip()
    if local := _LOCAL.fullmatch(master):
        return cores if local[1] == "*" else max(1, int(local[1] or 1))
    if cluster := _LOCAL_CLUSTER.fullmatch(master):
        return max(_ON_CLUSTERS_MIN, int(cluster[1]) * int(cluster[2]))
    if (cores_max := _number(conf, "spark.cores.max")) is not None:
        return max(_ON_CLUSTERS_MIN, cores_max)
    executors = _number(conf, "spark.executor.instances")
    grows = conf.get("spark.dynamicAllocation.enabled", "").strip().lower() == "true"
    if executors is None or grows:
        return None
    return max(_ON_CLUSTERS_MIN, executors * (_number(conf, "spark.executor.cores") or 1))


def settings(command: Sequence[str]) -> dict[str, str]:
    """Return the settings in a command line that starts Spark; later arguments win.

    A properties file it names is under ``--properties-file``.
    """
    found: dict[str, str] = {}
    words = iter(command)
    for word in words:
        flag, equals, value = word.partition("=")
        if word.startswith("-Dspark."):
            found[flag.removeprefix("-D")] = value
        elif flag in {"--conf", "-c"}:
            name, _, text = (value if equals else next(words, "")).partition("=")
            found[name] = text
        elif flag in _FLAGS or flag == _PROPERTIES_FILE:
            found[_FLAGS.get(flag, flag)] = value if equals else next(words, "")
    return found


def read_properties(text: str) -> dict[str, str]:
    """Return the settings of a file in Spark's form: name, blank or ``=``, value."""
    found = {}
    for line in text.splitlines():
        name, _, value = re.sub(r"[\s=]+", " ", line.strip(), count=1).partition(" ")
        if name and not name.startswith("#"):
            found[name] = value.strip()
    return found


def _number(conf: Mapping[str, str], name: str) -> int | None:
    text = conf.get(name, "").strip()
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text, re.ASCII) else None


def _properties(path: Path) -> dict[str, str]:
    try:
        return read_properties(path.read_text(errors="replace"))
    except OSError:
        return {}


def _driver_command() -> list[str] | None:
    """Return the command line of the JVM this process is a child of."""
    for command in _ancestors():
        if any(word.startswith("org.apache.spark.") for word in command):
            return command
    return None


def _ancestors() -> Iterator[list[str]]:
    pid = os.getppid()
    for _ in range(_ANCESTORS_MAX):
        place = Path("/proc", str(pid))
        try:
            command = (place / "cmdline").read_bytes().decode(errors="replace")
            # The program's name, in brackets, may contain anything; what follows it may not.
            status = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return
        yield command.rstrip("\0").split("\0")
        pid = int(status[1])
        if pid <= 1:
            return
