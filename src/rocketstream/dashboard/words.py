"""Values as pages show them: names of queues, JSON, text that cannot deceive, commands as links.

Pure: values in, text out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from shlex import split
from typing import Any, Final

from rocketstream._util.unseen import spelled_out
from rocketstream.admin.state import QueueState, Verdict

NONE: Final = "–"


def visible(text: str) -> str:
    """Return a text in which characters that hide or reorder others are spelled out: ``\u202e``."""
    return spelled_out(text, kept="\n\t")


def slug(verdict: Verdict) -> str:
    """Return the CSS class of a verdict."""
    return verdict.value.lower().replace(" ", "-")


def by_topic(queues: Iterable[QueueState]) -> list[tuple[str, str]]:
    """Return topics with their queue ids as ranges: ``0–3, 7``."""
    ids: dict[str, list[int]] = {}
    for queue in queues:
        ids.setdefault(queue.topic, []).append(queue.queue_id)
    return [(topic, ranges(found)) for topic, found in sorted(ids.items())]


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers with consecutive ones joined: ``0–3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in runs)


def clipped(text: str, most: int) -> str:
    """Return at most ``most`` characters of a text; a mark shows that some are left out."""
    return text if len(text) <= most else text[:most] + "…"


def as_json(value: Any) -> str:
    """Return JSON indented for reading."""
    return json.dumps(value, indent=2, ensure_ascii=False)


# --- commands in sentences ------------------------------------------------------------------------

_PAGES: Final = {
    ("group", "list"): ("/", "Groups"),
    ("group", "reset"): ("/group/reset", "Reset…"),
    ("group", "pause"): ("/group/pause", "Pause…"),
    ("group", "resume"): ("/group/resume", "Resume…"),
    ("group", "settings"): ("/group/settings", "Settings"),
    ("group", "update"): ("/group/settings", "Settings"),
    ("group", "delete"): ("/group/delete", "Delete…"),
    ("group", "members"): ("/group#members-title", "Members"),
    ("group", "running-info"): ("/group#members-title", "Members"),
    ("group", "why"): ("/group#why-title", "Causes"),
    ("group", "lag"): ("/group#queues-title", "Queues"),
    ("topic", "list"): ("/topics", "Topics"),
    ("topic", "create"): ("/topic/new", "Make it…"),
    ("topic", "update"): ("/topic/settings", "Settings"),
    ("topic", "status"): ("/topic", "Topic"),
    ("message", "view"): ("/message", "Message"),
    ("message", "search"): ("/messages", "Messages"),
    ("dlq", "causes"): ("/letters", "Dead letters"),
    ("dlq", "redrive"): ("/redrive", "Send again…"),
    ("producer", "list"): ("/producers", "Producers"),
}
_NAMES: Final = {
    "/group/reset": ("group", "topic"),
    "/message": ("topic", "id"),
    "/messages": ("topic",),
    "/letters": ("group",),
    "/redrive": ("group",),
}
"""The parameters that a page takes the arguments of a command by; others take a name."""
_TARGETS: Final = {
    "to-offset": ("offset", "offset"), "to-time": ("time", "time"), "shift": ("shift", "shift"),
    "copy-of": ("copy", "copy"), "to-earliest": ("earliest", ""), "to-latest": ("latest", ""),
}  # fmt: skip
"""The target of a reset by its option, and the field of its value."""
_OPTIONS: Final = {
    "queue", "cause", "where", "tag", "key", "perm", "read-queues", "write-queues", "broker",
    "offset", "oldest-first",
}  # fmt: skip
_RENAMED: Final = {"read-queues": "read", "write-queues": "write", "oldest-first": "newest"}
_FLAGS: Final = {"to-earliest": "", "to-latest": "", "stack": "", "yes": "", "oldest-first": "0"}
"""Options without a value, and the one that a page takes for them."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a sentence.

    Attributes:
        is_command: whether it stood between backticks.
        path: the page that does what the command does; None where there is none.
        parameters: those of the page.
        title: the words of a button.
    """

    text: str
    is_command: bool = False
    path: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    title: str = ""


def parts(sentence: str) -> Iterator[Part]:
    """Yield the words and the commands of a sentence in their order."""
    for index, text in enumerate(sentence.split("`")):
        if index % 2:
            yield _command(text)
        elif text:
            yield Part(text)


def _command(text: str) -> Part:
    try:
        words = split(text)
    except ValueError:
        words = []
    if words[:2] == ["rocketstream", "dlq"] and len(words) == 2:
        return Part(text, True, "/letters", (), "Dead letters")
    if len(words) < 3 or words[0] != "rocketstream" or tuple(words[1:3]) not in _PAGES:
        return Part(text, True)
    path, title = _PAGES[words[1], words[2]]
    page, _, _ = path.partition("#")
    arguments, options = _read(words[3:])
    if not arguments and page not in ("/", "/topics", "/producers"):
        return Part(text, True)
    found = dict(zip(_NAMES.get(page, ("name",)), arguments, strict=False))
    for name, value in options.items():
        if name in _TARGETS:
            target, field = _TARGETS[name]
            found |= {"target": target, **({field: value} if field else {})}
        elif name in _OPTIONS:
            found[_RENAMED.get(name, name)] = value.upper() if name == "perm" else value
    return Part(text, True, path, tuple(found.items()), title)


def _read(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of a command, and its options with their values."""
    arguments: list[str] = []
    options: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--"):
            arguments.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if name in _FLAGS:
            value = _FLAGS[name]
        elif not equals:
            value = words[at] if at < len(words) else ""
            at += 1
        options[name] = value
    return arguments, options
