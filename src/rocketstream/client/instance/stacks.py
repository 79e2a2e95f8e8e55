"""The stacks a client reports when a broker asks: its threads, and what its tasks wait for.

Law: looks at this process, changes nothing; ``admin.core.stacks`` reads the text.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from rocketstream.protocol.names import LISTENER_THREAD_PREFIX

_TASK_FRAMES_MAX = 50
TASKS_TOLD_MAX = 500
"""A program may have tasks by the ten thousand; those of listeners come first."""


def all_stacks() -> str:
    """Return the stack of every thread and of the running loop's tasks, as jstack lists Java's."""
    names = {thread.ident: thread for thread in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in sys._current_frames().items():
        thread = names.get(ident)
        name = thread.name if thread is not None else "unknown"
        daemon = " daemon" if thread is not None and thread.daemon else ""
        stack = traceback.extract_stack(frame)
        parts.append(_stack_text(f'"{name}"{daemon} TID: {ident}', stack))
    # What a coroutine listener waits for is in no thread's stack.
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    tasks.sort(key=_listeners_first)
    for task in tasks[:TASKS_TOLD_MAX]:
        stack = traceback.StackSummary.extract(_frames_of(task))
        parts.append(_stack_text(f'"{task.get_name()}" asyncio task', stack))
    if len(tasks) > TASKS_TOLD_MAX:
        parts.append(f"{len(tasks) - TASKS_TOLD_MAX} more asyncio tasks are not shown")
    return "\n\n".join(parts) + "\n"


def _listeners_first(task: asyncio.Task[Any]) -> tuple[bool, str]:
    name = task.get_name()
    return not name.startswith(LISTENER_THREAD_PREFIX), name


def _frames_of(task: asyncio.Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """Return a task's frames down to what it waits for; ``get_stack`` gives the first only."""
    waits: Any = task.get_coro()
    for _ in range(_TASK_FRAMES_MAX):
        frame = getattr(waits, "cr_frame", None)
        if frame is None:
            return
        yield frame, frame.f_lineno
        waits = waits.cr_await


def _stack_text(title: str, stack: traceback.StackSummary) -> str:
    lines = [title]
    for entry in reversed(stack):
        lines.append(f"    at {entry.name} ({entry.filename}:{entry.lineno})")
        if entry.line:
            lines.append(f"        {entry.line}")
    return "\n".join(lines)
