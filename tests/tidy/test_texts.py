"""What users read, in one manner: texts of errors and log lines, help of the command line.

The rule found and held: an error is a clause, or several joined by ``;`` and ``:``, without a full
stop; help is a sentence with one. Texts quoted from upstream stay as users search for them.
"""

from __future__ import annotations

import ast
import collections
import functools
import re
from collections.abc import Iterator

from tests.tidy.source import Module, modules

RIDDLES = {
    r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b)": "write `is not a ...`",
    r"(?<![Tt]here )\b(?:is|are|was|were) none\b": "repeat the noun: write `is not a ...`",
    r"\bsomebody else\b": "say who: another member, process, client",
    r"\b(?:can(?:not)?|to) be had\b": "say what is lacking",
    r"\bby and by\b": "say when",
    r"\bas (?:it says|told)\b": "say what says it",
    r"\bwhat is (?:meant|read|none)\b": "name the thing",
    r"\b(?:not|never) \w+ (?:no|none|nothing|nobody)\b": "two negations: say what happens",
}
"""Words a reader has to read twice, and what is written instead."""
OF_UPSTREAM = (
    "is conflict with system topic.",
    "'PUB|SUB'.",
    "is forbidden.",
    "cannot be compared.",
)
"""How texts end that are upstream's to the letter."""
LOGGED = {"debug", "info", "warning", "error", "exception", "critical"}
DECLARED = ("option", "argument", "partial")


def text_of(node: ast.AST) -> str | None:
    """The text of a literal, ``{}`` for what is filled in; None of what is no literal."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return None


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


@functools.cache
def texts() -> tuple[tuple[str, str, str], ...]:
    """Every sentence the modules hold but docstrings: what it is, where it stands, the text.

    What it is: ``told`` for errors and log lines, ``help`` for options and arguments, or ``other``.
    """
    return tuple(found for module in modules() for found in texts_of(module))


def texts_of(module: Module) -> Iterator[tuple[str, str, str]]:
    """The sentences of one module, as ``texts`` has them."""
    kinds: dict[int, str] = {}
    apart = set()
    for node in module.nodes:  # what encloses a text comes before it
        if isinstance(node, ast.Expr):  # docstrings, of attributes too
            apart.add(id(node.value))
        elif isinstance(node, ast.Call):
            name = called(node)
            if name.endswith("Error") or name == "BadParameter" or name in LOGGED:
                kinds |= dict.fromkeys(map(id, node.args), "told")
            elif name in DECLARED:
                kinds |= {id(each.value): "help" for each in node.keywords if each.arg == "help"}
                # Ours name themselves and their value first, then say what they are for.
                told = node.args[2:3] if name == "partial" else node.args[1:2]
                kinds |= dict.fromkeys(map(id, told), "help")
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in apart:
            text = text_of(node)
            if isinstance(node, ast.JoinedStr):
                apart.update(map(id, node.values))
            kind = kinds.get(id(node), "other")
            if text is not None and text.count(" ") >= (2 if kind == "other" else 1):
                yield kind, f"{module.place}:{node.lineno}", text


def test_errors_and_log_lines_have_no_full_stop() -> None:
    wrong = [
        f"{place}: {text!r}"
        for kind, place, text in texts()
        if kind == "told" and text.endswith(".") and not text.endswith(("...", *OF_UPSTREAM))
    ]
    assert not wrong, "\n".join(wrong)


def test_help_is_a_sentence() -> None:
    wrong = [
        f"{place}: {text!r}"
        for kind, place, text in texts()
        if kind == "help" and not text.endswith(".")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_text_has_to_be_read_twice() -> None:
    wrong = [
        f"{place}: {text!r}; {RIDDLES[riddle]}"
        for _, place, text in texts()
        for riddle in RIDDLES
        if re.search(riddle, text)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_docstring_has_to_be_read_twice() -> None:
    """Those of modules, classes, functions and attributes."""
    wrong = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = " ".join(str(node.value.value).split())
                wrong += [
                    f"{module.place}:{node.lineno}: ...{text[max(0, hit.start() - 40) : hit.end()]}"
                    f"; {RIDDLES[riddle]}"
                    for riddle in RIDDLES
                    for hit in re.finditer(riddle, text)
                ]
    assert not wrong, "\n".join(wrong)


def test_the_rule_sees_texts() -> None:
    """Errors, log lines, help and other sentences are found at all."""
    kinds = collections.Counter(kind for kind, _, _ in texts())
    assert kinds["told"] > 900
    assert kinds["help"] > 150
    assert any("did you mean" in text for _, _, text in texts())
