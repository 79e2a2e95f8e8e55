"""A quiet Spark session for programs (not notebooks): checks, a start and a complete stop.

A master is checked by its text, the environment, and whether the port of a standalone one is open.
"""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.installed import importable
from rocketstream.spark.setup.preparation import Java, find_java, local_python, use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JVM_EXIT_TIMEOUT_S = 15
_JVM_GONE_TIMEOUT_S = 2
_OUT_OF_MEMORY: Final = re.compile(r"java\.lang\.OutOfMemoryError(?:: [^\n]+)?")
_DEFERRED = (signal.SIGINT, signal.SIGTERM)
_SCRATCH_PREFIX = "rocketstream-"
_JVM_SAYS = re.compile(
    r'^(?:Exception in thread "main" |Error: |(?=Invalid |Unrecognized ))(.+)$', re.MULTILINE
)
_FORMS: Final = (
    r"local(\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\])?",
    r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]",
    r"yarn",
    r"k8s://\S+",
)
_STANDALONE: Final = re.compile(r"spark://(?P<hosts>[^,\s]+:\d+(,[^,\s]+:\d+)*)")
_CONNECT_TIMEOUT_S: Final = 1.5
_YARN_SETTINGS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_SOCKET_PATH_BYTES_MAX: Final = 103
"""The longest path of a Unix socket on macOS; Linux has four bytes more."""
_SOCKET_NAME_BYTES: Final = len("/.00000000-0000-0000-0000-000000000000.sock")
_JAVA_OPTIONS: Final = {"spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"}
_AVRO_LIMITS: Final = " ".join(
    f"-Dorg.apache.avro.limits.{name}.maxLength={most}"
    for name, most in (("string", 1 << 26), ("bytes", 1 << 26), ("collectionItems", 1 << 24))
)
"""The greatest lengths that an Avro body may tell: without them a body of nine bytes that claims to
hold two gigabytes ends the JVM, each time it is read.
"""
_scratch_of: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Directories of this process's sessions."""
_ended: weakref.WeakSet[Any] = weakref.WeakSet()
"""Sessions whose Spark was ended at once."""


def check_environment() -> Java:
    """Return the Java Spark will run on, after checking pyspark and pyarrow; takes about 0.1 s.

    Raises
    ------
    ConfigurationError
        One of the three is missing or too old; the error says what to install.
    """
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if not importable(name)]
    if missing:
        raise ConfigurationError(
            f"Spark needs {', '.join(missing)}, not installed here; "
            "run: pip install 'rocketstream[spark]'",
            missing=missing,
        )
    return find_java()


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


def start_session(
    name: str,
    *,
    log_file: Path,
    master: str = "local[*]",
    config: dict[str, str] | None = None,
    jvm_options: str = "",
    on_interrupt: Callable[[], None] | None = None,
) -> SparkSession:
    """Start Spark with all console output of its processes going to a file.

    Parameters
    ----------
    name : str
        Application name.
    log_file : Path
        The file for the stderr of the JVM and the workers, from the first line on.
    master : str
        Spark master URL.
    config : dict, optional
        More settings; they override the ones set here.
    jvm_options : str
        Options of Spark's JVM, such as ``-Xmx2g``.
    on_interrupt : callable, optional
        Called from the signal handler when SIGINT or SIGTERM arrives while Spark is starting.

    Notes
    -----
    Sets JAVA_HOME for the process where Spark would not find the Java that
    :func:`~rocketstream.spark.setup.preparation.find_java` names. Blocks for about five seconds.
    SIGINT and SIGTERM arriving meanwhile are delivered at the end, so that no half-started JVM is
    left behind.

    Raises
    ------
    ConfigurationError
        Spark does not start, because it cannot fetch a package or rejects a setting.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    use_java()
    python = local_python()
    # Workers must run this Python: it is the one that has the package.
    os.environ["PYSPARK_PYTHON"] = python
    os.environ["PYSPARK_DRIVER_PYTHON"] = python
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
    }
    scratch = tempfile.mkdtemp(prefix=_SCRATCH_PREFIX)
    # Sockets, artifacts and spilled blocks that Spark leaves behind are removed with this
    # directory.
    settings |= {
        "spark.local.dir": scratch,
        "spark.python.unix.domain.socket.enabled": str(_takes_sockets(scratch)).lower(),
        "spark.python.unix.domain.socket.dir": scratch,
        "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} {jvm_options} {_AVRO_LIMITS}",
        "spark.executor.extraJavaOptions": _AVRO_LIMITS,
    }
    given = dict(config or {})
    for name in given.keys() & _JAVA_OPTIONS:
        given[name] = f"{settings[name]} {given[name]}"  # of two of a name Java takes the last
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in (settings | given).items():
        builder = builder.config(key, value)
    terminal = os.dup(2)

    def tell() -> None:
        if on_interrupt is not None:
            with _stderr_at(terminal):  # and not among Spark's words in the file
                on_interrupt()

    try:
        with _interrupts_deferred(tell), _stderr_to(log_file):
            session = builder.getOrCreate()
            session.sparkContext.setLogLevel("ERROR")
    except KeyboardInterrupt:
        started = SparkSession.getActiveSession()
        if started is not None:
            _scratch_of[started] = scratch
            stop_session(started)
        raise
    except (PySparkException, Py4JError, ConnectionError) as error:
        reason = _start_failure(error, log_file)  # this calls the JVM
        _end_gateway()
        shutil.rmtree(scratch, ignore_errors=True)
        raise ConfigurationError(f"Spark did not start: {reason} (details: {log_file})") from error
    finally:
        os.close(terminal)
    _scratch_of[session] = scratch
    return session


def _takes_sockets(directory: str) -> bool:
    """Return whether Spark's sockets have room for their names there, as below a deep TMPDIR not.

    Spark uses TCP ports of this machine instead, which costs a little time.
    """
    size = len(os.fsencode(directory)) + _SOCKET_NAME_BYTES
    return hasattr(socket, "AF_UNIX") and size <= _SOCKET_PATH_BYTES_MAX


def _start_failure(error: Exception, log_file: Path) -> str:
    """Return why Spark did not start: the error Java raised, or else the last words of its JVM."""
    raised = getattr(error, "java_exception", None)
    if raised is not None:
        return str(raised.toString()).splitlines()[0]
    text = log_file.read_text("utf-8", "replace") if log_file.exists() else ""
    found = _JVM_SAYS.findall(text)
    # JVMs name the cause first, and then say that they could not be created.
    return found[0].strip() if found else str(error)


def expect_no_answers() -> None:
    """Stop Py4J, from here on, from logging calls that end without an answer.

    A user of a command need not see which calls Spark's end has interrupted: what failed by it is
    raised, and the others are those of other threads.
    """
    # Py4J logs to its own loggers and, in places, to the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def end_at_once(session: SparkSession) -> None:
    """End Spark's JVM without a call into it, from a signal handler too; about a tenth of a second.

    Calls under way, and later ones, fail; ``stop_session`` then has only to clean up. The
    checkpoint tells how far it was. An exception of the handler would be no end: where it
    interrupts a call, Py4J closes connections of other threads, and may raise its own error
    instead.
    """
    from pyspark import SparkContext

    _ended.add(session)
    expect_no_answers()
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        with _workers_outlived(process.pid):
            process.kill()
            process.wait()


def ended_by_itself(session: SparkSession, log_file: Path) -> str | None:
    """Return why Spark's JVM has ended though nobody ended it; None where it runs.

    Calls into one that ends now fail a moment before it is gone. ``stop_session`` then has only to
    clean up.
    """
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None or session in _ended:
        return None
    try:
        process.wait(_JVM_GONE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    _ended.add(session)
    text = log_file.read_text("utf-8", "replace") if log_file.exists() else ""
    if (found := _OUT_OF_MEMORY.search(text)) is not None:
        return f"{found[0]}; give it more, with --conf spark.driver.memory=4g, or less at a time"
    return f"its exit code is {process.returncode}"


def stop_session(session: SparkSession) -> None:
    """Stop Spark and wait until its JVM and its Python processes are gone; about a second."""
    from pyspark import SparkContext

    scratch = _scratch_of.pop(session, "")
    process = getattr(SparkContext._gateway, "proc", None)
    with _interrupts_deferred(), _workers_outlived(process.pid if process else None):
        if session in _ended:
            SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        else:
            session.stop()
            _end_gateway()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _end_gateway() -> None:
    """End the JVM this process has started, if there is one."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None:
        gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        _end_jvm(process)


def _end_jvm(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its stdin does
    try:
        process.wait(_JVM_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _workers_outlived(jvm: int | None) -> Iterator[None]:
    """End with the Python processes of a JVM that the block ends: they notice only afterwards.

    Works where processes can be waited for that are not this one's own (Linux); does nothing
    elsewhere.
    """
    with ExitStack() as opened:
        ended = []
        for process in _descendants(jvm) if jvm is not None and hasattr(os, "pidfd_open") else ():
            with suppress(OSError):  # gone between the look and the call
                ended.append(os.pidfd_open(process))
                opened.callback(os.close, ended[-1])
        yield
        until = time.monotonic() + _JVM_EXIT_TIMEOUT_S
        for process in ended:
            select.select([process], [], [], max(0.0, until - time.monotonic()))


def _descendants(process: int) -> Iterator[int]:
    """The descendants of a process, as Linux lists them."""
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in listing.read_text("ascii").split()]
        except OSError:
            continue  # its thread has ended
        for child in children:
            yield child
            yield from _descendants(child)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Give processes started meanwhile ``path`` as their stderr, for as long as they live."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        with _stderr_at(target):
            yield
    finally:
        os.close(target)


@contextmanager
def _stderr_at(target: int) -> Iterator[None]:
    """Have what is written to stderr go to an open file."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def _interrupts_deferred(on_interrupt: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the block is done; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        if on_interrupt is not None:
            on_interrupt()

    before = {number: signal.signal(number, remember) for number in _DEFERRED}
    try:
        yield
    finally:
        # Spark installs its own handler while starting; the program's handler is the one that
        # counts.
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(arrived[0])
