"""Docstrings and comments: who does what, by name, and citations a reader can follow."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator

from tests.tidy.source import ROOT, Module, modules, of_each

NAMELESS = re.compile(
    r"""(?: \A | (?<=[.:;!?]\s) | (?<=\n) )   # where a sentence or an entry begins
        (?: What | Whatever | Who | Whoever | Those | That ) \b
        (?! [^.?!]* \? )                     # a question may
    """,
    re.VERBOSE,
)
"""The beginning of a sentence whose subject has no name: `What is sent is taken`."""
CITED = re.compile(r"\bC-(\d+)\b")
WITHOUT_DOCUMENT = re.compile(r"\b[WSA] ?\d+\.\d+|wire-and-storage")
"""Citations of notes that are not in this repository."""


@functools.cache
def words_of(module: Module) -> tuple[tuple[int, str], ...]:
    """Return docstrings and comments of a module, each with its line."""
    return tuple(_words_of(module))


def _words_of(module: Module) -> Iterator[tuple[int, str]]:
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, joined(str(node.value.value))
    block: list[str] = []
    first = last = -1
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if line != last + 1:
                if block:
                    yield first, " ".join(block)
                block, first = [], line
            block.append(token.string.lstrip("# "))
            last = line
    if block:
        yield first, " ".join(block)


def joined(text: str) -> str:
    """A docstring with a line for each paragraph and each entry of a list such as ``Args``."""
    return re.sub(r"\n(?!\n)[ ]*(?![ ]*\**\w+: )", " ", re.sub(r"\n\s*\n\s*", "\n\n", text))


@of_each(modules())
def test_no_sentence_begins_without_a_named_subject(module: Module) -> None:
    wrong = [
        f"{module.place}:{line}: ...{text[hit.start() : hit.end() + 60]!r}"
        for line, text in words_of(module)
        for hit in NAMELESS.finditer(text)
    ]
    assert not wrong, "name the thing:\n" + "\n".join(wrong)


@functools.cache
def behaviours() -> frozenset[str]:
    """The numbers docs/behaviours.md explains."""
    text = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")
    return frozenset(re.findall(r'<a id="c-(\d+)"></a>', text))


@of_each(modules())
def test_citations_lead_to_a_document_of_this_repository(module: Module) -> None:
    wrong = []
    for line, text in words_of(module):
        wrong += [
            f"{module.place}:{line}: C-{number} is not in docs/behaviours.md"
            for number in CITED.findall(text)
            if number not in behaviours()
        ]
        wrong += [
            f"{module.place}:{line}: {hit.group()!r} names no document here"
            for hit in WITHOUT_DOCUMENT.finditer(text)
        ]
    assert not wrong, "\n".join(wrong)


def test_the_rules_see_docstrings_and_comments() -> None:
    """Sentences amid a docstring, entries and comments are found; questions may begin so."""
    text = (
        '"""A thing. What it does is\n    seen.\n\n    Whose? What for?"""\n'
        "x = 1  # Whoever asks\n# gets it. That is all\n"
    )
    module = Module("m", ROOT / "m.py", text, ast.parse(text))
    found = [hit.group() for _, words in words_of(module) for hit in NAMELESS.finditer(words)]
    assert found == ["What", "Whoever", "That"]
    assert {"1", "418", "628"} <= behaviours()
