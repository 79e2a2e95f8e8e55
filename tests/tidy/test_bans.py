"""Calls and marks that have no place here, each with what to use instead."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.tidy.source import ROOT, Module, modules, of_each, python_files

BANNED_CALLS = {
    "time.sleep": "wait on an event with a timeout",
    "time.time": "take a Clock",
    "datetime.now": "take a Clock",
    "datetime.datetime.now": "take a Clock",
    "datetime.utcnow": "take a Clock",
    "pickle.loads": "never unpickle what came from outside",
    "os.system": "subprocess.run with a list",
    "eval": "parse it",
    "asyncio.get_event_loop": "asyncio.get_running_loop",
}
PRINT_ALLOWED = ("rocketstream.cli",)
CLOCK_HOME = "rocketstream._util.clock"
# Pieced together so that this file does not contain what it looks for.
LEFTOVERS = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b"
)
# The project speaks of itself alone.
FOREIGN = re.compile(
    "|".join(
        [
            "/wo" + "rk/",
            "/tmp/con" + "tract",
            "farm" + "-",
            "hel" + "per PROTO",
            "sess" + "ion [0-9]",
        ]
    )
)


@of_each(modules())
def test_names_that_come_late_are_no_any_to_type_checkers(module: Module) -> None:
    """To them a module with a ``__getattr__`` has every name, also a misspelt one."""
    names = [node.name for node in module.tree.body if isinstance(node, ast.FunctionDef)]
    assert "__getattr__" not in names, "put it below `if not TYPE_CHECKING`"


@of_each(modules())
def test_no_banned_call(module: Module) -> None:
    wrong = []
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in BANNED_CALLS and module.name != CLOCK_HOME:
            wrong.append(f"{module.place}:{node.lineno} {name}: {BANNED_CALLS[name]}")
        if name == "print" and not module.name.startswith(PRINT_ALLOWED):
            wrong.append(f"{module.place}:{node.lineno} print: log or return it")
        if any(k.arg == "shell" and ast.unparse(k.value) == "True" for k in node.keywords):
            wrong.append(f"{module.place}:{node.lineno} shell=True: pass a list")
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            wrong.append(f"{module.place}:{node.lineno} bare except: name what is caught")
    assert not wrong, "\n".join(wrong)


def kept_files() -> list[Path]:
    docs = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
    ]
    poms = [*(ROOT / "tests").rglob("*.xml"), *(ROOT / "tests").rglob("*.java")]
    java = list((ROOT / "benchmarks").rglob("*.java"))
    return [p for p in [*python_files(), *docs, *poms, *java] if p.exists()]


def test_no_leftover_mark_and_no_foreign_path() -> None:
    wrong = []
    for path in kept_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if LEFTOVERS.search(line) and "SCHEDULE_TOPIC" not in line:
                wrong.append(f"{path}:{number}: {line.strip()}")
            if FOREIGN.search(line):
                wrong.append(f"{path}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_tests_do_not_sleep() -> None:
    """A test waits for what it waits for; a sleep is a guess about speed."""
    wrong = []
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "time.sleep" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep"}:
                wrong.append(f"{path}:{node.lineno}")
    assert not wrong, "\n".join(wrong)


def test_what_starts_apaches_servers_is_marked_as_interop() -> None:
    """Unmarked, it is among the tests that need nothing but Python and Java, and fetches jars."""
    starts = re.compile(r"\bApacheCluster\(|\bapache_cluster\b")
    files = (ROOT / "tests").rglob("test_*.py")
    texts = {file.name: file.read_text("utf-8") for file in files}
    starting = {name: text for name, text in texts.items() if starts.search(text)}
    assert "test_lite_topics_on_apache.py" in starting
    assert [name for name, text in starting.items() if "mark.interop" not in text] == []
