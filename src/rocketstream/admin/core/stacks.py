"""The stacks a member reports of its threads, Java's and Python's, and where its listeners stand.

Pure: text in, values out. A line that is neither a thread nor a frame is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rocketstream.protocol.names import LISTENER_THREAD_PREFIX, THREAD_GROUP_CHARS_MAX

STACK_LINES_MAX = 12
_JAVA_THREAD = re.compile(r"^(?P<name>.*?) *TID: (?P<id>-?\d+) STATE: (?P<state>\w+)\s*$")
_OUR_THREAD = re.compile(
    r'^"(?P<name>.*)"(?:(?: daemon)? TID: (?P<id>\d+)| (?P<task>asyncio task))\s*$'
)
_OUR_FRAME = re.compile(r"^ {4}at (?P<name>.+) \((?P<file>.+):(?P<line>\d+)\)\s*$")
_JAVA_RUN = ("ConsumeMessageConcurrentlyService$ConsumeRequest.run",
             "ConsumeMessageOrderlyService$ConsumeRequest.run")  # fmt: skip
_JAVA_CLIENT = "org.apache.rocketmq.client.impl.consumer."
_JAVA_OWN = ("java.", "javax.", "jdk.", "sun.", "com.sun.")
_JAVA_MODULE = re.compile(r"^(?:[\w.-]*(?:@[\w.+-]+)?/){1,2}(?=[\w$.]+\()")
"""The prefix a frame's class may have: ``app//``, ``java.base@17.0.1/``."""
_OUR_CALLER = re.compile(r"[/\\]rocketstream[/\\]client[/\\]consumer[/\\]consume[/\\]")
_PYTHON_OWN = re.compile(
    r"[/\\](?:lib[/\\]python3[^/\\]*|Lib)[/\\](?!site-packages|dist-packages)|^<"
)


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread, or one asyncio task of a Python member.

    Attributes:
        frames: its stack, the innermost frame first.
        state: its state in Java's terms (``TIMED_WAITING``); None for a Python thread.
        listener: the part of ``frames`` in the user's listener and its callees; empty while the
            thread is in no listener.
        is_task: whether it is an asyncio task.
    """

    name: str
    frames: tuple[str, ...]
    state: str | None = None
    listener: tuple[str, ...] = ()
    is_task: bool = False

    @property
    def place(self) -> str | None:
        """The innermost place in the user's own code, otherwise the innermost of all."""
        if not self.listener:
            return None
        own = (frame for frame in self.listener if not _is_library(frame))
        return next(own, self.listener[0])

    def text(self) -> str:
        """Return the listener's part of the stack, line by line."""
        shown = self.listener or self.frames
        state = f" ({self.state})" if self.state else ""
        lines = [f"{self.name}{state}", *(f"    at {frame}" for frame in shown[:STACK_LINES_MAX])]
        if len(shown) > STACK_LINES_MAX:
            lines.append(f"    and {len(shown) - STACK_LINES_MAX} frames more")
        return "\n".join(lines)


def threads_of(text: str | None) -> tuple[ThreadStack, ...]:
    """Return the threads of a running info's stacks (``jstack``), in its order."""
    found: list[tuple[str, str | None, bool, list[str]]] = []
    for line in (text or "").splitlines():
        java, ours = _JAVA_THREAD.match(line), _OUR_THREAD.match(line)
        if ours:
            found.append((ours["name"], None, ours["task"] is not None, []))
        elif java:
            found.append((java["name"], java["state"], False, []))
        elif found and (frame := _frame(line, found[-1][0])):
            found[-1][3].append(frame)
    return tuple(
        ThreadStack(name, tuple(frames), state, _listener_part(frames), is_task)
        for name, state, is_task, frames in found
    )


def busy_listeners(threads: Iterable[ThreadStack], group: str) -> tuple[ThreadStack, ...]:
    """Return the threads that are inside a listener of this group."""
    prefix = f"{LISTENER_THREAD_PREFIX}{group[:THREAD_GROUP_CHARS_MAX]}_"
    return tuple(t for t in threads if t.listener and t.name.startswith(prefix))


def places(threads: Sequence[ThreadStack]) -> list[tuple[str, int]]:
    """Return the places in the user's code where threads stand with their number, most first."""
    found = Counter(thread.place for thread in threads if thread.place)
    return sorted(found.items(), key=lambda each: (-each[1], each[0]))


def _frame(line: str, thread: str) -> str | None:
    ours = _OUR_FRAME.match(line)
    if ours:
        return f"{ours['name']} ({ours['file']}:{ours['line']})"
    # Java's client writes the thread's name, padded to 40, before each frame.
    if thread and line.startswith(thread):
        return _JAVA_MODULE.sub("", line[len(thread) :].strip()) or None
    return None


def _listener_part(frames: Sequence[str]) -> tuple[str, ...]:
    """Return the frames above the client's own: the listener and its callees.

    A listener may use a client itself, so the frame that calls listeners is searched for.
    """
    for index, frame in enumerate(frames):
        if _OUR_CALLER.search(frame):
            return tuple(frames[:index])
        if any(run in frame for run in _JAVA_RUN):
            own = index == 0 or frames[index - 1].startswith(_JAVA_CLIENT)
            return () if own else tuple(frames[:index])
    return ()


def _is_library(frame: str) -> bool:
    if frame.startswith(_JAVA_OWN):
        return True
    file = frame.rpartition(" (")[2]
    return bool(_PYTHON_OWN.search(file))
