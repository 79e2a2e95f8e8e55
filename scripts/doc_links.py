"""Links of our Markdown pages, and the README's as the package index shows them.

Pages link to each other by paths, so that they work wherever the repository is read. The package
index and the site of `make docs` have no such paths: there links are rewritten, here.

Law: pure text, but for the hook at the end, which the build backend calls. It loads this file by
its path alone, so nothing of ours is imported.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

BRANCH = "main"
"""The branch whose files absolute links show."""
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository's first folder, and what they are on the site."""

_CODE = re.compile(
    r"^(?P<fence>[ \t]*(?:`{3,}|~{3,})).*?^(?P=fence)[ \t]*$"
    r"|(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)"
    r"|<!--.*?-->",
    re.DOTALL | re.MULTILINE,
)
_TARGET = re.compile(
    r"(?<=\]\()(?P<inline>[^()\s]+)(?=\))"
    r"|^\[[^\]\n]+\]:[ ]+(?P<reference>\S+)"
    r"|\b(?:src|srcset|href)=\"(?P<html>[^\"]+)\"",
    re.MULTILINE,
)
_HEADING = re.compile(r"^#{1,6}[ ]+(.*?)[ ]*#*$", re.MULTILINE)
_IMAGE = (".png", ".svg", ".jpg", ".gif", ".webp")


def is_relative(link: str) -> bool:
    """Tell whether a link means a file of the repository or a place on its own page."""
    return not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//", link)


def rewritten(text: str, change: Callable[[str], str]) -> str:
    """Return a page with every link changed, but for what stands in code and comments."""

    def of_target(found: re.Match[str]) -> str:
        group = found.lastgroup
        assert group is not None
        start, end = found.start(group) - found.start(), found.end(group) - found.start()
        whole = found.group()
        return whole[:start] + change(found.group(group)) + whole[end:]

    parts, place = [], 0
    for code in _CODE.finditer(text):
        parts += [_TARGET.sub(of_target, text[place : code.start()]), code.group()]
        place = code.end()
    return "".join([*parts, _TARGET.sub(of_target, text[place:])])


def links(text: str) -> list[str]:
    """Return the links of a page, in order, each as often as it stands there."""
    found: list[str] = []

    def note(link: str) -> str:
        found.append(link)
        return link

    rewritten(text, note)
    return found


def anchors(text: str) -> set[str]:
    """Return the places of a page a link may name, as GitHub makes them of its headings."""
    return {*_slugs(text), *re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)}


def _slugs(text: str) -> Iterator[str]:
    fences = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
    seen: Counter[str] = Counter()
    for heading in _HEADING.findall(fences.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = slug(shown)
        yield f"{name}-{seen[name]}" if seen[name] else name
        seen[name] += 1


def without_escapes(table_row: str) -> str:
    """Return a row of a table with the bars of its code as they are meant.

    Where the repository is read, a bar in code must be escaped, or it would part two cells; what
    makes the site parts none there, and shows the escape.
    """
    spans = r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)"
    return re.sub(spans, lambda found: found.group().replace("\\|", "|"), table_row)


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def resolved(page: str, link: str) -> tuple[str, str]:
    """Return the file a relative link means, as a path in the repository, and the place in it.

    Args:
        page: path of the page the link stands on.
        link: a relative link.
    """
    path, _, place = link.partition("#")
    if not path:
        return page, place
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)), place


def absolute(repository: str, path: str, place: str = "") -> str:
    """Return the address of a file, or of a folder, of the repository."""
    kind = "raw" if path.endswith(_IMAGE) else "blob" if posixpath.splitext(path)[1] else "tree"
    if path in ("LICENSE", "Makefile"):
        kind = "blob"
    return f"{repository}/{kind}/{BRANCH}/{path}" + (f"#{place}" if place else "")


def long_description(readme: str, repository: str) -> str:
    """Return the README with every link absolute."""

    def change(link: str) -> str:
        return absolute(repository, *resolved("README.md", link)) if is_relative(link) else link

    return rewritten(readme, change)


class LongDescription(MetadataHookInterface):
    """Gives a package the README that the package index can show."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description; the repository is the one of the project's URLs."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = long_description(readme, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
