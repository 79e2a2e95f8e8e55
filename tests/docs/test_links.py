"""Every link of every page leads somewhere: here, on the package index, and on the site."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from scripts import api_pages, doc_links
from tests.tidy.source import ROOT

FOLDERS = ("docs", "examples", "benchmarks", "demo")
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        *ROOT.glob("*.md"),
        *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.md")),
    ]
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def urls() -> dict[str, str]:
    project: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))["project"]
    found: dict[str, str] = project["urls"]
    return found


def leads_nowhere(page: str, link: str) -> str | None:
    """Say what is wrong with a link, if anything is."""
    path, place = doc_links.resolved(page, link)
    if not (ROOT / path).exists():
        return f"{link}: there is no {path}"
    if place and path.endswith(".md") and place not in doc_links.anchors(text_of(path)):
        return f"{link}: {path} has no heading of that name"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_and_anchor_leads_somewhere(page: str) -> None:
    wrong = [
        problem
        for link in doc_links.links(text_of(page))
        if doc_links.is_relative(link) and (problem := leads_nowhere(page, link))
    ]
    assert wrong == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    assert leads_nowhere("docs/sending.md", "../README.md#produce") is None
    assert leads_nowhere("docs/sending.md", "README.md") is not None
    assert leads_nowhere("docs/sending.md", "../README.md#no-such-heading") is not None
    assert leads_nowhere("docs/sending.md", "#no-such-heading") is not None


def test_links_are_those_a_reader_sees() -> None:
    """Not those in code or comments."""
    text = "[a](b.md) `[c](d.md)` ![e](f.png)\n```\n[g](h.md)\n```\n<!-- [i](j.md) -->\n[k]: l.md\n"
    assert doc_links.links(text) == ["b.md", "f.png", "l.md"]


def test_anchors_are_made_as_github_does() -> None:
    text = (
        "# Of `group lag` & more\n## Twice\n## Twice\n```sh\n# no heading\n```\n## [a](b.md), c\n"
    )
    assert doc_links.anchors(text) == {"of-group-lag--more", "twice", "twice-1", "a-c"}


def test_the_index_shows_the_readme_with_absolute_links_to_what_there_is() -> None:
    repository = urls()["Repository"]
    shown = doc_links.long_description(text_of("README.md"), repository)
    found = doc_links.links(shown)
    assert len(found) == len(doc_links.links(text_of("README.md"))) > 30
    for link in found:
        assert not doc_links.is_relative(link), link
        if link.startswith(repository):
            kind, branch, path = link.removeprefix(repository + "/").split("#")[0].split("/", 2)
            assert branch == doc_links.BRANCH
            assert (ROOT / path).is_dir() if kind == "tree" else (ROOT / path).is_file(), link


def test_the_urls_of_the_project_are_of_one_repository() -> None:
    found = urls()
    assert found.keys() >= {"Repository", "Documentation", "Changelog", "Issues"}
    for name, url in found.items():
        assert url.startswith(found["Repository"]), name


def pages_of(nav: Any) -> list[str]:
    """Return the files a part of the navigation names."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages_of(part)]


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    """A page that is not: add it to ``nav`` of mkdocs.yml."""
    named = pages_of(yaml.safe_load(text_of("mkdocs.yml"))["nav"])
    docs = ROOT / "docs"
    there = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert sorted(named) == sorted({*there, *doc_links.ROOT_PAGES.values(), *api_pages.PAGES})
