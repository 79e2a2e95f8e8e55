"""The small defects a module can have: which expressions and statements change, into what.

Law: text and trees only; the same source gives the same changes in the same order. What nobody can
notice is left out by rule: annotations, decorators, texts of messages, calls of a logger.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
# Swapping their operator says the same as negating the whole condition.
ONE_NEGATION = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
UNSEEN_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "bases"}
UNSEEN_CALLS = {"logger", "warnings"}


@dataclass(frozen=True)
class Change:
    """One small defect.

    Attributes:
        module: dotted name of the module.
        number: which of the module's changes it is.
        line: where it is in the source; ``lines`` is what a test must reach to notice it.
        where: the function it is in, or the name it gives a value to, as Python qualifies it.
        at_import: whether it acts when the module is imported, as that of a default does.
        old, new: what stands there, and what stands there instead.
    """

    module: str
    number: int
    line: int
    lines: tuple[int, int]
    where: str
    at_import: bool
    old: str
    new: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it as long as its own text stays: module, function, old, new."""
        return self.module, self.where, self.old, self.new


@dataclass(frozen=True)
class _Edit:
    """A replacement in a tree: ``owner.field``, or ``owner.field[index]``, becomes ``new``."""

    owner: ast.AST
    field: str
    index: int | None
    new: ast.AST
    shown: tuple[str, str]
    line: int
    lines: tuple[int, int]
    where: tuple[str, ...]
    at_import: bool

    def apply(self) -> None:
        if self.index is None:
            setattr(self.owner, self.field, self.new)
        else:
            getattr(self.owner, self.field)[self.index] = self.new


@dataclass(frozen=True)
class _Place:
    """Where a walk is: what is around, and whether it runs when the module is imported."""

    where: tuple[str, ...] = ()
    at_import: bool = True
    lines: tuple[int, int] = (0, 0)


def changes_of(module: str, source: str) -> list[Change]:
    """Return every change of a module, in the order of its text."""
    return [
        Change(
            module,
            number,
            edit.line,
            edit.lines,
            ".".join(edit.where),
            edit.at_import,
            *edit.shown,
        )
        for number, edit in enumerate(_edits(ast.parse(source)))
    ]


def changed(source: str, number: int) -> ast.Module:
    """Return a module's tree with one of its changes made."""
    tree = ast.parse(source)
    for at, edit in enumerate(_edits(tree)):
        if at == number:
            edit.apply()
            return ast.fix_missing_locations(tree)
    raise ValueError(f"the module has no change number {number}")


def _edits(tree: ast.Module) -> Iterator[_Edit]:
    # All of them first: an edit must not be seen by the walk that finds the next.
    return iter(list(_walk(tree, _Place())))


def _walk(node: ast.AST, place: _Place) -> Iterator[_Edit]:
    for field, value in ast.iter_fields(node):
        if field in UNSEEN_FIELDS:
            continue
        inside = _inside(node, field, place)
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _is_unseen(child):
                continue
            here = inside
            if isinstance(child, ast.stmt):
                here = _Place(_named(child, inside), inside.at_import, _header(child))
            for old, new in _variants(node, field, child):
                shown = (_shown(old), _shown(new))
                line = getattr(child, "lineno", here.lines[0])
                yield _Edit(
                    node, field, index, new, shown, line, here.lines, here.where, here.at_import
                )
            yield from _walk(child, here)


def _inside(node: ast.AST, field: str, place: _Place) -> _Place:
    """Return where a field of a node is; the body of a function does not run at import.

    What a default does shows where the body runs: those lines a test must reach to notice it.
    """
    if isinstance(node, ast.ClassDef):
        return _Place((*place.where, node.name), place.at_import, place.lines)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        name = (*place.where, node.name)
        if field == "body":
            return _Place(name, False, place.lines)
        body = (node.body[0].lineno, node.body[-1].end_lineno or node.lineno)
        return _Place(name, place.at_import, body)
    return place


def _named(node: ast.stmt, place: _Place) -> tuple[str, ...]:
    """Return where a statement is; at import the name it gives a value to belongs to that."""
    if place.at_import and isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return (*place.where, ast.unparse(target))
    return place.where


def _is_unseen(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        return any(isinstance(each, ast.Name) and each.id == "__all__" for each in node.targets)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        owner = function.value if isinstance(function, ast.Attribute) else function
        return isinstance(owner, ast.Name) and owner.id in UNSEEN_CALLS
    return isinstance(node, ast.ImportFrom | ast.Import | ast.Assert)


def _header(node: ast.stmt) -> tuple[int, int]:
    """Return the lines of a statement, of its condition alone when it has a body."""
    end = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if body:
        end = max(node.lineno, body[0].lineno - 1)
    return node.lineno, end


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 110 else f"{text[:107]}..."


def _variants(owner: ast.AST, field: str, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield (what is shown as old, what stands there instead) of one node."""
    if isinstance(node, ast.Compare):
        yield from _compared(node)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, ast.BoolOp(other, node.values)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    if field == "test" and isinstance(owner, ast.If | ast.While | ast.IfExp):
        yield from _negated(node)
    if field == "ifs":
        yield from _negated(node)
    if isinstance(node, ast.stmt):
        yield from _statements(node)


def _compared(node: ast.Compare) -> Iterator[tuple[ast.AST, ast.AST]]:
    for index, operator in enumerate(node.ops):
        operators = list(node.ops)
        operators[index] = COMPARISONS[type(operator)]()
        yield node, ast.Compare(node.left, operators, node.comparators)


def _constants(node: ast.Constant) -> Iterator[tuple[ast.AST, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield node, ast.Constant(not value)
    elif isinstance(value, int | float):
        yield node, ast.Constant(value + 1)
        yield node, ast.Constant(value - 1)


def _negated(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, node.operand
    elif not (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], ONE_NEGATION)
    ) and not isinstance(node, ast.Constant):
        assert isinstance(node, ast.expr)
        yield node, ast.UnaryOp(ast.Not(), node)


def _statements(node: ast.stmt) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.Return) and node.value is not None:
        constant = isinstance(node.value, ast.Constant)
        if not (constant and node.value.value in (None, True, False)):  # type: ignore[attr-defined]
            yield node, ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr):
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            yield node, ast.Pass()
    elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        other = copy.copy(node)
        other.op = ARITHMETIC[type(node.op)]()
        yield node, other
