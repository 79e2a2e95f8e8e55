"""Sends and consumes with everything taken away that Windows or macOS lacks.

Law: run as a program of its own; what it removes is gone for the whole process.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading

MISSING = {
    os: ("fork", "register_at_fork", "sched_getaffinity", "getuid", "pread", "pwrite", "preadv"),
    select: ("poll", "epoll"),
    socket: ("MSG_DONTWAIT", "SO_REUSEPORT", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE"),
    signal: ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "pthread_sigmask"),
}
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "uvloop")


def main(namesrv_addr: str) -> None:
    """Take it all away, then use a producer and a consumer."""
    import asyncio  # needs some of it itself on this system, so it comes first
    import concurrent.futures
    import multiprocessing
    import subprocess
    import tempfile

    assert all((asyncio, concurrent.futures, multiprocessing, subprocess, tempfile))
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails
    sys.platform = "darwin"

    from rocketstream import (
        ConsumeConcurrentlyStatus,
        ConsumeFromWhere,
        Message,
        MessageExt,
        Producer,
        PushConsumer,
    )

    arrived = threading.Event()

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        arrived.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with (
        Producer("senders", namesrv_addr=namesrv_addr) as producer,
        PushConsumer(
            "platform",
            namesrv_addr=namesrv_addr,
            listener=listener,
            subscription={"Platform": "*"},
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        ),
    ):
        producer.send(Message("Platform", b"x"))
        producer.send_async(Message("Platform", b"y")).result(10)
        assert arrived.wait(30)
    sys.stdout.write("consumed\n")


if __name__ == "__main__":
    main(sys.argv[1])
