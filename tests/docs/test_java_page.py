"""The page for users of the Java client: every name of ours on it exists, and its programs run."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import rocketstream
from rocketstream import suggestions
from rocketstream.server.embedded import EmbeddedCluster

PAGE = (Path(__file__).resolve().parents[2] / "docs/java-to-python.md").read_text(encoding="utf-8")
TEXT = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
DEFAULT_ADDR = "127.0.0.1:9876"
NOBODY = "127.0.0.1:1"
SAID = {"send": "SEND_OK\n", "push": "billed: order 7\n", "poll": "2 orders\n"}
VALUES: dict[str, object] = {
    "listener": lambda messages: None,
    "subscription": {"orders": "*"},
    "offset_store": None,
    "transaction_listener": None,
    "enable_msg_trace": False,
    "customized_trace_topic": "trace",
    "check_thread_pool_min_size": 1,
    "check_thread_pool_max_size": 1,
    "check_request_hold_max": 1,
}
"""What to give for keywords that are no field of a client's settings."""


@dataclass(frozen=True)
class Cell:
    """What a row says stands here for something of Java's."""

    kind: str  # what the head of the column says: here, method, member, keyword
    owner: str  # of whom; "" where the head names nobody
    text: str

    def spans(self) -> Iterator[tuple[str, str]]:
        """Yield each name with the kind it is of; "the keyword `x`" is one of its owner."""
        for lead, span in re.findall(r"(keyword )?`([^`]+)`", self.text.replace("\\|", "|")):
            yield ("keyword" if lead else self.kind), span


def cells(text: str) -> Iterator[Cell]:
    """Yield the last cell of each row of each table, with what its head says of it."""
    kind = owner = ""
    for line in text.splitlines():
        if not line.startswith("| "):
            continue
        last = re.split(r"(?<!\\)\|", line)[-2].strip()
        head = re.fullmatch(r"(here)|(?:a )?(method|member|keyword) of `([\w.]+)`", last)
        if head:
            kind, owner = head[1] or head[2], head[3] or ""
        else:
            assert kind
            yield Cell(kind, owner, last)


def found(path: str) -> Any:
    """Return what a dotted name means: of the package, of one of its modules, or of Python."""
    first, *rest = path.split(".")
    if first != "rocketstream":
        value = getattr(rocketstream, first, None) or getattr(builtins, first)
    else:
        value = rocketstream
    for name in rest:
        value = member(value, name, path)
    return value


def member(value: Any, name: str, path: str) -> Any:
    """Return an attribute, a module that is one, or a stand-in for what only instances have."""
    if inspect.ismodule(value) and not hasattr(value, name):
        return importlib.import_module(f"{value.__name__}.{name}")
    if inspect.isclass(value) and not hasattr(value, name):
        assert name in getattr(value, "__annotations__", {}), f"{path}: there is no {name}"
        return None
    return getattr(value, name)


def check_call(call: ast.Call, owner: Any) -> None:
    """Bind the arguments the page shows to the real signature."""
    if isinstance(call.func, ast.Attribute):  # of a service: `groups.lag(group)`
        owner, name = type(attrgetter(ast.unparse(call.func.value))(owner(NOBODY))), call.func.attr
    else:
        assert isinstance(call.func, ast.Name), ast.unparse(call)
        name = call.func.id
    given = found(name) if name[0].isupper() else getattr(owner, name)
    instance = [] if inspect.isclass(given) else [object()]
    keywords = {each.arg: object() for each in call.keywords if each.arg}
    inspect.signature(given).bind(*instance, *(object() for _ in call.args), **keywords)


def check_keyword(owner: Any, name: str) -> None:
    """Make a client, or a configuration, with a setting: an unknown one is refused."""
    if owner is rocketstream.ClientConfig:
        assert name in inspect.signature(owner).parameters, name
        owner = rocketstream.Producer  # as promised, every client takes it
    plain = owner("group", namesrv_addr=NOBODY)
    for holder in (plain.settings, plain.config):
        if hasattr(holder, name):
            value = getattr(holder, name)
            break
    else:
        value = VALUES[name]
    owner("group", **{"namesrv_addr": NOBODY, name: value})


def check(kind: str, owner: str, span: str) -> None:
    """Check one name of the page.

    Raises:
        AssertionError, AttributeError, TypeError, ...: there is no such thing.
    """
    holder = found(owner) if owner else None
    tree = ast.parse(span, mode="eval").body
    if isinstance(tree, ast.Call):
        check_call(tree, holder)
    elif kind == "keyword" and isinstance(tree, ast.Name):
        check_keyword(holder or rocketstream.ClientConfig, span)
    elif holder is not None and isinstance(tree, ast.Name) and not span[0].isupper():
        member(holder, span, f"{owner}.{span}")
    else:
        assert isinstance(tree, ast.Name | ast.Attribute | ast.Constant), span
        if not isinstance(tree, ast.Constant):
            found(span)


ROWS = [(cell.owner, kind, span) for cell in cells(TEXT) for kind, span in cell.spans()]


@pytest.mark.parametrize("owner", sorted({owner for owner, _, _ in ROWS}))
def test_every_name_of_the_tables_exists(owner: str) -> None:
    wrong = []
    for of, kind, span in ROWS:
        if of == owner:
            try:
                check(kind, of, span)
            except Exception as error:
                wrong.append(f"{of} {span}: {error!r}")
    assert wrong == []


def test_the_tables_name_most_of_what_there_is() -> None:
    """So that the test above has read them."""
    assert len(ROWS) > 350
    named = {span for _, _, span in ROWS}
    assert {"Producer", "SendOutcome.UNKNOWN", "poll()", "consume_thread_max"} <= named


def test_every_dotted_name_of_the_sentences_exists() -> None:
    sentences = "\n".join(line for line in TEXT.splitlines() if not line.startswith("|"))
    dotted = re.findall(r"`((?:rocketstream|[A-Z]\w+)(?:\.\w+)+)`", sentences)
    assert len(dotted) >= 8
    for name in dotted:
        found(name)


@pytest.mark.parametrize(
    ("kind", "owner", "span"),
    [
        ("here", "", "Sender"),
        ("here", "", "PullStatus.MISSED"),
        ("here", "", "rocketstream.errors.NoSuchError"),
        ("method", "Producer", "send_later(message)"),
        ("method", "Producer", "send(message, sharding=1)"),
        ("method", "Producer", "max_offset()"),
        ("member", "MessageExt", "queue"),
        ("member", "Message", "Message(topic, body, tag=1)"),
        ("keyword", "PushConsumer", "consume_threads"),
        ("keyword", "ClientConfig", "retry_times_when_send_failed"),
    ],
)
def test_a_wrong_name_is_found(kind: str, owner: str, span: str) -> None:
    with pytest.raises(Exception, match=r"."):
        check(kind, owner, span)


def test_the_programs_say_what_they_promise(tmp_path: Path) -> None:
    """On one server: the consumers read what the first has sent."""
    programs = dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
    assert programs.keys() == SAID.keys()
    assert PAGE.count("```python") == len(programs)
    with EmbeddedCluster() as cluster:
        for name, program in programs.items():
            assert DEFAULT_ADDR in program
            script = tmp_path / f"{name}.py"
            script.write_text(program.replace(DEFAULT_ADDR, cluster.namesrv_addr), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, str(script)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout == SAID[name]


def test_classes_that_have_other_names_here_are_answered() -> None:
    """Whoever imports one of the table's is told what is used in its place, and it exists."""
    table = TEXT[TEXT.index("## Classes") : TEXT.index("## Two faces")]
    rows = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
    theirs = {name for row in rows for name in re.findall(r"`([A-Z]\w*[a-z]\w*)`", row)}
    missing = {name for name in theirs if name not in rocketstream.__all__}
    assert {"DefaultMQProducer", "DefaultMQAdminExt"} <= missing
    for name in missing:
        with pytest.raises(ImportError, match=f"rocketstream has no {name}; use "):
            getattr(rocketstream, name)


def test_what_is_used_in_place_of_a_class_exists() -> None:
    for ours in suggestions._CLASSES.values():
        if re.fullmatch(r"[\w.]+", ours):
            assert found(ours)
