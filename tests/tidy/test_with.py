"""`with` starts a client: nothing we show starts one again inside its block."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHOWN = ("examples", "demo", "benchmarks", "src", "scripts")
_FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def programs() -> Iterator[tuple[str, int, str]]:
    """Return name, first line and text of every program and of every one inside a page."""
    for folder in SHOWN:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), 0, path.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for fence in _FENCE.finditer(text):
            line = text.count("\n", 0, fence.start(1))
            yield str(page.relative_to(ROOT)), line, fence.group(1)


def started_again(tree: ast.AST) -> list[int]:
    """Return the lines where what a block has entered is started inside it."""
    lines = []
    for block in ast.walk(tree):
        if isinstance(block, ast.With | ast.AsyncWith):
            entered = set(_entered(block))
            lines += [
                node.lineno
                for statement in block.body
                for node in ast.walk(statement)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "start"
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in entered
            ]
    return sorted(set(lines))


def _entered(block: ast.With | ast.AsyncWith) -> Iterator[str]:
    for item in block.items:
        for name in (item.optional_vars, item.context_expr):
            if isinstance(name, ast.Name):
                yield name.id


def test_no_client_is_started_inside_its_block() -> None:
    wrong = [
        f"{name}:{first + line}"
        for name, first, text in programs()
        for line in started_again(_parsed(text))
    ]
    assert not wrong, f"`with` has started it: {', '.join(wrong)}"


def _parsed(text: str) -> ast.AST:
    try:
        return ast.parse(text)
    except SyntaxError:  # a page may show a piece that is no program
        return ast.Module([], [])


@pytest.mark.parametrize(
    "text",
    [
        "with C() as c:\n    c.start()",
        "with P() as p, c:\n    if p:\n        c.start()",
        "async def f():\n    async with C() as c:\n        await c.start()",
    ],
)
def test_the_old_form_is_found(text: str) -> None:
    assert started_again(ast.parse(text)) == [text.count("\n") + 1]


def test_what_no_block_has_entered_may_be_started() -> None:
    assert not started_again(ast.parse("c.start()\nwith p:\n    d.start()\nwith c:\n    pass"))
