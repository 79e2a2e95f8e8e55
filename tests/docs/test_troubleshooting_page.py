"""The page for trouble: every text it quotes is one that is raised, logged, or Apache's."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
APACHES = (ROOT / "docs/behaviours.md").read_text(encoding="utf-8").replace("Xms", "… ms")
JOINED = re.compile(r'"\s*\n\s*f?"')
FILLED_IN = re.compile(r"\{[^{}\n]*\}|%[-+.\d]*[sdrfx]")


def quoted(page: str) -> list[str]:
    """Return the quotations of a page: what stands in backticks and has blanks and an ellipsis."""
    tables = page.split("## By error text")[1]
    first = [row.split(" | ")[0] for row in tables.splitlines() if row.startswith("| `")]
    logged = re.findall(r"the log: (.+?) \|", page)
    return [text for cell in [*first, *logged] for text in re.findall(r"`([^`]+)`", cell)]


def raised() -> str:
    """Return the package's source, each text on one line, an ellipsis for what is filled in."""
    paths = sorted((ROOT / "src").rglob("*.py"))
    source = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return FILLED_IN.sub("…", JOINED.sub("", source))


def is_said(text: str, said: str) -> bool:
    """Whether one line of ``said`` has what stands before, between and after ellipses, in order."""
    first, *others = [part for part in text.split("…") if part]
    at = said.find(first)
    while at >= 0:
        line = said[at : said.find("\n", at)]
        place = len(first)
        for part in others:
            place = line.find(part, place)
            if place < 0:
                break
            place += len(part)
        else:
            return True
        at = said.find(first, at + 1)
    return False


def test_every_error_text_is_real() -> None:
    found = quoted(PAGE)
    assert len(found) > 40
    said = raised()
    assert [text for text in found if not is_said(text, said) and not is_said(text, APACHES)] == []


def test_a_text_nobody_says_is_found() -> None:
    said = raised()
    assert is_said("cannot listen on …: the port is in use; …", said)
    assert not is_said("cannot listen on …: the port is taken; …", said)
