"""The worker that looks: at committed offsets, and at the end at all queues and dead letters."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocketstream import LitePullConsumer, RocketMQError
from rocketstream.admin import Admin
from rocketstream.errors import RouteNotFoundError
from tests.outside.consuming import Task, described
from tests.outside.history import DONE
from tests.outside.recording import Recorder

__all__ = ["Watch", "observe"]


@dataclass
class Watch:
    """What the observer is to look at."""

    recorder: Recorder
    namesrv_addr: str
    name: str
    leaving: threading.Event
    quiet: Path
    """A file: once it is there all queues are read."""
    groups: Sequence[tuple[str, str]]
    topics: Sequence[str]
    letters: Sequence[str]


def observe(watch: Watch) -> None:
    """Look until told to read, read, and wait for the end."""
    watch.recorder.note("ready")
    with Admin(watch.namesrv_addr) as admin:
        while not watch.leaving.is_set() and not watch.quiet.exists():
            for group, topic in watch.groups:
                _look(watch, admin, group, topic)
            watch.leaving.wait(0.3)
        for group, topic in watch.groups:
            _look(watch, admin, group, topic)
        if not watch.leaving.is_set():
            _read_letters(watch, admin)
    if not watch.leaving.is_set():
        _read_all(watch)
        (watch.quiet.parent / "read").touch()
    watch.recorder.wait(watch.leaving)
    watch.recorder.note("stopping")


def _look(watch: Watch, admin: Admin, group: str, topic: str) -> None:
    asked = time.monotonic_ns()
    try:
        states = admin.groups.lag(group, topic)
    except RocketMQError:
        return  # the servers are away, or the group has committed nothing yet
    for state in states:
        if state.committed_offset is not None and state.committed_offset >= 0:
            watch.recorder.note(
                "committed", group=group, topic=state.topic, queue=state.queue_id,
                offset=state.committed_offset, asked=asked,
            )  # fmt: skip


def _read_all(watch: Watch) -> None:
    """Read every queue from its beginning to its end, and the dead letters."""
    task = Task(watch.recorder, watch.namesrv_addr, "reader", "", watch.name, watch.leaving)
    for topic in watch.topics:
        with LitePullConsumer("reader", namesrv_addr=watch.namesrv_addr, auto_commit=False) as it:
            queues = it.fetch_message_queues(topic)
            it.assign(queues)
            for queue in queues:
                it.seek_to_begin(queue)
            misses = 0
            while misses < 3:
                messages = it.poll(timeout_ms=500)
                misses = 0 if messages else misses + 1
                if messages:
                    task.taken(task.given(messages), DONE)


def _read_letters(watch: Watch, admin: Admin) -> None:
    """Find every dead letter, and view it whole."""
    for group in watch.letters:
        topic, resume = f"%DLQ%{group}", None
        while True:
            try:
                page = admin.messages.search(
                    topic, newest_first=False, most=1_000, examined_most=100_000, resume=resume
                )
            except RouteNotFoundError:
                break  # nothing has ever failed for good
            for shown in page.messages:
                message = admin.messages.view(topic, shown.offset_msg_id)
                told = described(message, message.message_queue)
                watch.recorder.note("letter", group=group, **told)
            resume = page.resume
            if resume is None:
                break
