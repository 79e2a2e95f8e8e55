"""Functions fit a screen, modules a head, and every module opens with its law."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.source import Module, modules, of_each, python_files

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 800


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, which is for the reader of the interface."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function, without a look at expressions, which are most of a tree."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if not isinstance(child, ast.expr):
            yield from functions(child)


def test_no_function_is_longer_than_a_screen() -> None:
    trees = {module.path: module.tree for module in modules()}
    long = [
        f"{path}:{node.lineno} {node.name} has {length(node)} lines"
        for path in python_files()
        for node in functions(trees.get(path) or ast.parse(path.read_text(encoding="utf-8")))
        if length(node) > FUNCTION_LINES_MAX
    ]
    assert not long, "\n".join(long)


def test_no_file_is_longer_than_a_head_can_hold() -> None:
    long = []
    for path in python_files():
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > MODULE_LINES_MAX:
            long.append(f"{path}: {count} lines")
    assert not long, "\n".join(long)


@of_each(modules())
def test_every_module_says_what_it_is_for(module: Module) -> None:
    assert ast.get_docstring(module.tree), f"{module.place} has no docstring"


@of_each(modules())
def test_public_names_are_documented(module: Module) -> None:
    bare = []
    for node in module.nodes:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            bare.append(f"{module.place}:{node.lineno} class {node.name}")
    for node in module.tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name[0] == "_":
            continue
        if not ast.get_docstring(node):
            bare.append(f"{module.place}:{node.lineno} def {node.name}")
    assert not bare, "\n".join(bare)
