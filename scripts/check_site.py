"""Check the site `make docs` has built: it needs nothing from outside, and says what the pages say.

* No page or style asks another server for a script, a style, a font or a picture, or has the theme
  ask one for figures of the repository.
* Every link within the site leads to a page, and to a place on it.
* Each page has the headings, tables, list items, code blocks and words that the same text has where
  the repository is read: a list that only one of two renderings takes for a list is found here.

Run from the repository after ``mkdocs build``; prints what is wrong and ends with 1.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

from scripts.doc_links import ROOT_PAGES

ROOT = Path(__file__).resolve().parent.parent
FETCHED = {"script", "img", "source", "iframe", "audio", "video", "embed", "object", "input", "use"}
"""Tags whose address a browser follows by itself."""
FOLLOWED = ("src", "srcset", "data", "href")
RELATIONS = {"stylesheet", "preload", "prefetch", "modulepreload", "icon", "manifest", "preconnect"}
"""What a ``link`` makes a browser fetch."""
COUNTED = {"h1", "h2", "h3", "h4", "h5", "h6", "table", "tr", "li", "pre", "img"}
OF_STYLES = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)")
VOID = {"img", "br", "hr", "input", "meta", "link", "source", "wbr", "col"}


@dataclass
class Read(HTMLParser):
    """What one page holds; ``inside`` limits counts and words to the text of the page."""

    inside: str = "article"
    fetched: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._depth = 0
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.places |= {known[name] for name in ("id", "name") if name in known}
        if known.get("data-md-component") == "source":
            self.fetched.append(known.get("href", "https:"))
        if tag in FETCHED:
            self.fetched += [
                known[name] for name in ("src", "srcset", "data", "href") if name in known
            ]
        elif tag == "link" and RELATIONS & set(known.get("rel", "").split()):
            self.fetched.append(known.get("href", ""))
        elif tag == "a" and "href" in known:
            self.links.append(known["href"])
        if tag == self.inside:
            self._depth += 1
        if self._depth:
            self.counts[tag] += tag in COUNTED
            if (tag in ("button", "style", "script", "nav") or self._silent) and tag not in VOID:
                self._silent += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self._depth -= 1
        if self._silent and tag not in VOID:
            self._silent -= 1

    def handle_data(self, data: str) -> None:
        if self._depth and not self._silent:
            self.words.append(data)

    def text(self) -> str:
        """Return the words in one line without the blanks between, which renderings set freely."""
        return re.sub(r"\s+", "", "".join(self.words))


def read(html: str) -> Read:
    """Return what a page holds."""
    page = Read()
    page.feed(html)
    return page


def is_outside(address: str) -> bool:
    """Tell whether an address names another server."""
    return address.startswith(("http:", "https:", "//"))


Pages = dict[str, Read]
"""The pages of a site by their paths in it."""


def outside(site: Path, pages: Pages) -> list[str]:
    """Say what would be fetched from elsewhere."""
    found = [
        f"{path} fetches {address}"
        for path, page in pages.items()
        for address in page.fetched
        if is_outside(address)
    ]
    for kind in ("*.css", "*.svg", "*.html"):
        for file in site.rglob(kind):
            asked = OF_STYLES.findall(file.read_text(encoding="utf-8"))
            found += [f"{file.relative_to(site)} fetches {address}" for address in asked]
    return found


def leading_nowhere(site: Path, pages: Pages) -> list[str]:
    """Say which links within the site lead nowhere."""
    found = []
    for path, page in pages.items():
        if path == "404.html":  # shown at any address, so its links are none of the site's
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            near = posixpath.join(posixpath.dirname(path), unquote(parts.path))
            target = posixpath.normpath(near) if parts.path else path
            if (site / target).is_dir():
                target = posixpath.normpath(posixpath.join(target, "index.html"))
            there = pages.get(target)
            lost = parts.fragment and there and unquote(parts.fragment) not in there.places
            if not (site / target).is_file() or lost:
                found.append(f"{path} links to {link}, which is not there")
    return found


def source_of(path: str) -> Path | None:
    """Return the page of the repository a page of the site is made of."""
    name = path.removesuffix(".html") + ".md"
    places = {page: place for place, page in ROOT_PAGES.items()}
    source = ROOT / places.get(name, f"docs/{name}")
    return source if source.is_file() else None


def shown_otherwise(name: str, text: str, page: Read) -> list[str]:
    """Say what a page of the site shows otherwise than the repository does.

    Args:
        name: what the problems call it.
        text: what it was made of.
        page: what became of that.
    """
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    meant = read(f"<article>{rendered}</article>")
    found = [
        f"{name}: {meant.counts[tag]} <{tag}> in the repository, {page.counts[tag]} on the site"
        for tag in sorted(COUNTED)
        if meant.counts[tag] != page.counts[tag]
    ]
    here, there = meant.text(), page.text()
    if here != there:
        at = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
        at = min(len(here), len(there)) if at is None else at
        found.append(
            f"{name}: the texts part at {here[at - 40 : at + 40]!r}: {there[at : at + 40]!r}"
        )
    return found


def problems(site: Path) -> list[str]:
    """Return all that is wrong with a site, one line each."""
    files = sorted(site.rglob("*.html"))
    pages = {
        file.relative_to(site).as_posix(): read(file.read_text(encoding="utf-8")) for file in files
    }
    found = [*outside(site, pages), *leading_nowhere(site, pages)]
    for path, page in pages.items():
        source = source_of(path)
        if source is not None:
            text = source.read_text(encoding="utf-8")
            found += shown_otherwise(str(source.relative_to(ROOT)), text, page)
    return found or ([] if pages else [f"there is no page in {site}"])


def main() -> int:
    """Check, and say how many pages were."""
    site = ROOT / "site"
    found = problems(site)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"{len(list(site.rglob('*.html')))} pages in site/, which fetch nothing from outside")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
