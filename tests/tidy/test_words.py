"""One word for one thing in what users call: parameters and attributes of the public classes."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import rocketstream
from rocketstream import admin, aio
from rocketstream.admin import aio as admin_aio
from tests.tidy.source import modules, of_each

BANNED = {
    "mq": "message_queue",
    "mqs": "message_queues",
    "millis": "ms, as in timeout_ms",
    "milliseconds": "ms, as in timeout_ms",
    "msec": "ms, as in timeout_ms",
    "secs": "a number of ms",
    "props": "properties",
}
"""What is said instead of a part of a name."""
BANNED_ALONE = {"msg": "message", "msgs": "messages", "max_num": "max_nums"}
"""What is said instead of a whole name; as a part, as in ``msg_id``, it is Java's."""
JAVAS = {"mq_all", "mq_divided"}
"""Names of Java's interfaces that users implement."""


def public_classes() -> Iterator[tuple[str, type[Any]]]:
    """The classes a user can name."""
    seen = set()
    for module in (rocketstream, aio, admin, admin_aio):
        for name in dir(module):
            kind = getattr(module, name)
            ours = inspect.isclass(kind) and kind.__module__.startswith("rocketstream")
            if ours and kind not in seen and not name.startswith("_"):
                seen.add(kind)
                yield name, kind


def said(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    """What a class says to its users: where, the word, and its type."""
    for name in dir(kind):
        if name.startswith("_") and name != "__init__":
            continue
        member = inspect.getattr_static(kind, name)
        yield name, name, ""
        call = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(call) and call.__module__.startswith("rocketstream"):
            for each in inspect.signature(call).parameters.values():
                yield name, each.name, str(each.annotation)


CLASSES = sorted(public_classes(), key=lambda each: (each[0], each[1].__module__))


@of_each([kind for _, kind in CLASSES])
def test_public_names_use_one_word_for_one_thing(kind: type[Any]) -> None:
    wrong = [
        f"{kind.__name__}.{where}: {word!r}; the word is {BANNED[part]}"
        for where, word, _ in said(kind)
        for part in word.split("_")
        if part in BANNED and word not in JAVAS
    ]
    wrong += [
        f"{kind.__name__}.{where}: {word!r} is of MessageQueue; the word is message_{word}"
        for where, word, annotation in said(kind)
        if word in ("queue", "queues") and "MessageQueue" in annotation
    ]
    wrong += [
        f"{kind.__name__}.{where}: {word!r}; the word is {BANNED_ALONE[word]}"
        for where, word, _ in said(kind)
        if word in BANNED_ALONE
    ]
    assert not wrong, "\n".join(wrong)


def test_the_rule_looks_at_what_users_call() -> None:
    """The consumers and producers of both faces and the operations are among what is looked at."""
    names = {name for name, _ in CLASSES}
    assert names >= {"Producer", "PushConsumer", "PullConsumer", "LitePullConsumer", "Admin"}
    words = {word for _, kind in CLASSES for _, word, _ in said(kind)}
    assert words >= {"message_queue", "message_queues", "timeout_ms", "queue_id"}


# --- names inside the package ---------------------------------------------------------------------

CLUSTER_WATCHERS = ("watch.", "admin.", "agents.", "cli.", "dashboard.")
ONE_MEANING = {
    "watch": (*CLUSTER_WATCHERS, "transport.server."),  # a loop watches sockets, as asyncio says
    "turn": (
        "client.consumer.consume.orderly_queue",
        "client.consumer.consume.",
        "spark.listener.",
        "cli.top.",
    ),
    "ledger": (),
    "book": (),
    "teller": (),
}
"""Words with one meaning (ARCHITECTURE.md, "Words"), and the rooms that have to do with it."""
OFFSETS_ARE_NOTED = tuple(
    "client." + room
    for room in (
        "consumer.lite.", "consumer.offsets.", "consumer.pull.", "consumer.push.",
        "consumer.assignment", "consumer.queue",
    )
)  # fmt: skip
"""Where clients note offsets; they note nothing else."""


def named(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Every name a module gives: classes, functions, parameters, attributes and variables."""
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def words_of(name: str) -> frozenset[str]:
    """``OrderlyTurns`` and ``orderly_turns`` both have orderly and turns."""
    return frozenset(each.lower() for each in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name))


@functools.cache
def names() -> list[tuple[str, str, frozenset[str]]]:
    """Of every name the package gives: the room, where it stands, and its words."""
    return [
        (module.name.removeprefix("rocketstream."), f"{module.place}:{line} {name}", words_of(name))
        for module in modules()
        for line, name in [(1, module.name.rpartition(".")[2]), *named(module.nodes)]
    ]


@of_each(list(ONE_MEANING))
def test_a_word_with_one_meaning_is_used_where_it_has_it(stem: str) -> None:
    forms = {stem, stem + "s", stem + "es", stem + "ed"}
    rooms = ONE_MEANING[stem]
    wrong = [
        place
        for room, place, words in names()
        if words & forms and not (room + ".").startswith(rooms)
    ]
    assert not wrong, "see ARCHITECTURE.md, Words:\n" + "\n".join(wrong)


def test_clients_note_only_offsets() -> None:
    wrong = [
        place
        for room, place, words in names()
        if room.startswith("client.") and not room.startswith(OFFSETS_ARE_NOTED) and "note" in words
    ]
    assert not wrong, "see ARCHITECTURE.md, Words:\n" + "\n".join(wrong)
