"""Runs a broker with a store on disk where what Linux has and another system lacks is taken away.

Law: run as a program of its own; what it removes is gone for the whole process.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import select
import signal
import socket
import sys
import types

EVERYWHERE = {
    os: ("fork", "register_at_fork", "sched_getaffinity", "sched_yield", "posix_fallocate"),
    select: ("epoll", "poll"),
    socket: ("MSG_DONTWAIT", "SO_REUSEPORT", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE"),
    mmap: ("MADV_RANDOM",),
}
ONLY_WINDOWS = {
    os: ("getuid", "geteuid", "pread", "pwrite", "preadv", "pwritev", "fdatasync", "sysconf"),
    signal: ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "pthread_sigmask"),
}
MODULES = {"darwin": ("uvloop",), "win32": ("uvloop", "resource", "pwd", "grp", "termios", "fcntl")}


class WindowsLoop(asyncio.SelectorEventLoop):
    """A loop that cannot do what the one of Windows cannot."""

    add_reader = asyncio.AbstractEventLoop.add_reader
    add_writer = asyncio.AbstractEventLoop.add_writer
    remove_reader = asyncio.AbstractEventLoop.remove_reader
    remove_writer = asyncio.AbstractEventLoop.remove_writer
    add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
    create_unix_server = asyncio.AbstractEventLoop.create_unix_server
    create_unix_connection = asyncio.AbstractEventLoop.create_unix_connection


def locks_of_windows() -> types.ModuleType:
    """What of ``msvcrt`` the store uses, on this system's locks."""
    module = types.ModuleType("msvcrt")
    vars(module).update(LK_NBLCK=1, LK_UNLCK=2)

    def locking(fd: int, mode: int, count: int) -> None:
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0  # it locks from where the file stands
        kind = fcntl.LOCK_UN if mode == 2 else fcntl.LOCK_EX | fcntl.LOCK_NB
        fcntl.lockf(fd, kind, count, 0, os.SEEK_SET)

    vars(module)["locking"] = locking
    return module


def take_away(system: str) -> None:
    """Make this process lack what the system lacks, and say that it is that system."""
    missing = [*EVERYWHERE.items(), *(ONLY_WINDOWS.items() if system == "win32" else ())]
    for module, names in missing:
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    if system == "win32":
        sys.modules["msvcrt"] = locks_of_windows()
        vars(asyncio)["new_event_loop"] = WindowsLoop
    else:
        del os.fdatasync, os.SEEK_DATA, os.SEEK_HOLE
        vars(fcntl)["F_FULLFSYNC"] = -1  # refused here, as by a file system that does not know it
    for name in MODULES[system]:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails
    sys.platform = system


def main(system: str, store: str) -> None:
    """Store and consume, refuse a second broker on the store, recover it and read it again."""
    import concurrent.futures  # these need some of it themselves on this system, so they come first
    import multiprocessing
    import shutil
    import subprocess
    import tempfile

    assert all((concurrent.futures, multiprocessing, shutil, subprocess, tempfile))
    asyncio.new_event_loop().close()  # 3.14 asks for the system only when the first is made
    take_away(system)
    from rocketstream import Message, Producer, PullConsumer
    from rocketstream.errors import StoreLockedError
    from rocketstream.server.embedded import EmbeddedCluster

    def stored(address: str) -> list[str]:
        consumer = PullConsumer("readers", namesrv_addr=address)
        consumer.start()
        try:
            return [
                message.body.decode()
                for queue in consumer.fetch_subscribe_message_queues("Platform")
                for message in consumer.pull(queue, "*", 0, 32).msg_found_list
            ]
        finally:
            consumer.shutdown()

    for round_ in ("first", "second"):
        with EmbeddedCluster(store_dir=store, flush="sync") as cluster:
            with Producer("senders", namesrv_addr=cluster.namesrv_addr) as producer:
                for number in range(3):
                    producer.send(Message("Platform", f"{round_} {number}", keys=f"{number}"))
            thread = cluster._thread
            assert thread is not None
            print(len(stored(cluster.namesrv_addr)), type(thread.loop).__name__)
            try:
                EmbeddedCluster(store_dir=store).start()
            except StoreLockedError as error:
                print("locked" if "in use" in str(error) else error)


if __name__ == "__main__":
    main(*sys.argv[1:])
