"""`with` starts a client: nothing we show starts one again inside its block."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHOWN = ("examples", "demo", "benchmarks", "src", "scripts", "tests")
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
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With | ast.AsyncWith)]
    refused = {id(call) for block in blocks if _expects(block) for call in _starts(block)}
    return sorted(
        {
            call.lineno
            for block in blocks
            for call in _starts(block)
            if id(call) not in refused and _is_entered(call.func.value, set(_entered(block)))  # type: ignore[attr-defined]
        }
    )


def _starts(block: ast.With | ast.AsyncWith) -> list[ast.Call]:
    return [
        node
        for statement in block.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "start"
    ]


def _expects(block: ast.With | ast.AsyncWith) -> bool:
    """Whether a block is there for what goes wrong in it: a test of the second start."""
    calls = [item.context_expr for item in block.items]
    names = [call.func for call in calls if isinstance(call, ast.Call)]
    return any(isinstance(n, ast.Attribute) and n.attr in ("raises", "warns") for n in names)


def _is_entered(client: ast.expr, names: set[str]) -> bool:
    if isinstance(client, ast.Call):  # stack.enter_context(consumer).start()
        given = {arg.id for arg in client.args if isinstance(arg, ast.Name)}
        called = client.func
        name = called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)
        return name.endswith("enter_context") or (name == "instrument" and bool(given & names))
    return isinstance(client, ast.Name) and client.id in names


def _entered(block: ast.With | ast.AsyncWith) -> Iterator[str]:
    for item in block.items:
        for name in (item.optional_vars, item.context_expr):
            if isinstance(name, ast.Name):
                yield name.id


def test_no_client_is_started_inside_its_block() -> None:
    wrong = [
        f"{name}:{first + line}"
        for name, first, text in programs()
        if ".start()" in text
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
        "with C() as c:\n    instrument(c).start()",
        "with ExitStack() as stack:\n    stack.enter_context(c).start()",
        "async def f():\n    async with C() as c:\n        await c.start()",
    ],
)
def test_the_old_form_is_found(text: str) -> None:
    assert started_again(ast.parse(text)) == [text.count("\n") + 1]


def test_what_no_block_has_entered_may_be_started() -> None:
    refused = "with C() as c:\n    with pytest.raises(E):\n        c.start()"
    assert not started_again(ast.parse(refused))
    assert not started_again(ast.parse("c.start()\nwith p:\n    d.start()\nwith c:\n    pass"))
