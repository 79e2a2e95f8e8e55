"""What `make docs` holds the site to: planted faults are found, and a sound site is not blamed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from scripts import api_pages
from scripts.check_site import problems, read, shown_otherwise
from scripts.site_names import breakable

ROOT = Path(__file__).resolve().parents[2]
SOUND = """
<html><head><link rel="stylesheet" href="style.css"><script src="main.js"></script></head>
<body><a href="other.html#place">there</a><a href="https://example.org">outside</a></body></html>
"""


def made(site: Path, page: str, style: str = "body { color: black }") -> Path:
    (site / "other.html").write_text('<h1 id="place">Other</h1>', encoding="utf-8")
    (site / "style.css").write_text(style, encoding="utf-8")
    (site / "page-of-no-source.html").write_text(page, encoding="utf-8")
    return site


def test_a_sound_site_is_not_blamed(tmp_path: Path) -> None:
    assert problems(made(tmp_path, SOUND)) == []


@pytest.mark.parametrize(
    ("was", "planted"),
    [
        ("main.js", "https://cdn.example.org/main.js"),
        ("style.css", "//cdn.example.org/style.css"),
        ("<body>", '<body><img src="http://example.org/picture.png">'),
        ('<a href="other', '<a data-md-component="source" href="//git.org/x">1</a><a href="other'),
        ("other.html#place", "other.html#gone"),
        ("other.html#place", "gone.html"),
    ],
)
def test_a_planted_fault_of_a_page_is_found(was: str, planted: str, tmp_path: Path) -> None:
    found = problems(made(tmp_path, SOUND.replace(was, planted)))
    assert len(found) == 1
    assert "page-of-no-source.html" in found[0]


@pytest.mark.parametrize(
    "style",
    ["@import 'https://example.org/a.css';", "p { src: url(//example.org/font.woff2) }"],
)
def test_a_style_that_fetches_is_found(style: str, tmp_path: Path) -> None:
    assert len(problems(made(tmp_path, SOUND, style))) == 1


def test_an_empty_site_is_a_fault(tmp_path: Path) -> None:
    assert problems(tmp_path) != []


def test_a_list_that_became_a_paragraph_is_found() -> None:
    """As Python-Markdown makes of a list that no empty line precedes."""
    text = "# Head\n\nsome:\n- one\n- two\n"
    sound = "<article><h1>Head</h1><p>some:</p><ul><li>one</li><li>two</li></ul></article>"
    assert shown_otherwise("page", text, read(sound)) == []
    found = shown_otherwise(
        "page", text, read("<article><h1>Head</h1><p>some: - one - two</p></article>")
    )
    assert found[0] == "page: 2 <li> in the repository, 0 on the site"
    assert len(found) == 2


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("<code>consume_thread_max</code>", "<code>consume_<wbr>thread_<wbr>max</code>"),
        ("<code>consumeThreadMax</code>", "<code>consume<wbr>Thread<wbr>Max</code>"),
        ("ROCKETMQ_VIP_CHANNEL, else", "ROCKETMQ_<wbr>VIP_<wbr>CHANNEL, else"),
        ("<code>auto_batch</code>", "<code>auto_batch</code>"),
        (
            '<a href="pull_consumers_of_all.html">x</a>',
            '<a href="pull_consumers_of_all.html">x</a>',
        ),
    ],
)
def test_a_long_name_in_a_table_is_broken_at_its_joints_alone(cell: str, shown: str) -> None:
    assert breakable(f"<table><td>{cell}</td></table>") == f"<table><td>{shown}</td></table>"
    assert breakable(f"<p>{cell}</p>") == f"<p>{cell}</p>"


@pytest.mark.parametrize("module", api_pages.MODULES)
def test_each_public_name_is_shown_once(module: str) -> None:
    shown = api_pages.public(module)
    assert len(shown) == len(set(shown)) > 0
    page = api_pages.text_of(module)
    assert [name for name in shown if page.count(f"::: {name}\n") != 1] == []


def test_the_services_of_admin_follow_it() -> None:
    """With the methods that users call, as ``admin.groups.why``."""
    shown = [name.rpartition(".")[2] for name in api_pages.public("rocketstream.admin")]
    assert shown[:6] == ["Admin", "Cluster", "Brokers", "Topics", "Groups", "Producers"]


IMPORTED = re.compile(
    r"^ *from (rocketstream[\w.]*) import (?:\(([^)]*)\)|([\w, ]+))", re.MULTILINE
)


def imported() -> set[tuple[str, str]]:
    """Return what pages and examples import of the package: modules and names."""
    places = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")]
    return {
        (module, name)
        for place in places
        for module, lines, line in IMPORTED.findall(place.read_text("utf-8"))
        for name in re.findall(r"\w+", lines or line)
    }


def meant(dotted: str) -> object:
    """Return the value of a name; those of types alone are themselves."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name, dotted)


def test_each_name_that_pages_and_examples_import_is_in_the_reference() -> None:
    """Under this name or another."""
    shown = [meant(name) for module in api_pages.MODULES for name in api_pages.public(module)]
    shown += [importlib.import_module(module) for module in api_pages.MODULES]
    names = [f"{module}.{name}" for module, name in imported()]
    assert [name for name in names if not any(meant(name) is value for value in shown)] == []
    assert len(names) > 40
