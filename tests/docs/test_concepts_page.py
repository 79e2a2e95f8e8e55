"""The page for newcomers: its programs print what it shows, its pictures can be read anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rocketstream.server.embedded import EmbeddedCluster

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "concepts.md").read_text(encoding="utf-8")
PROGRAM = re.compile(r"<!-- test: (\w+) -->\n```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
PROGRAMS = {name: (program, printed) for name, program, printed in PROGRAM.findall(PAGE)}
DEFAULT_ADDR = "127.0.0.1:9876"
PICTURES = re.findall(r"!\[[^\]]+\]\((images/[\w-]+\.svg)\)", PAGE)
PHONE_PX = 400
FONT_PX_MIN = 13


@pytest.fixture(scope="module")
def namesrv_addr() -> Iterator[str]:
    with EmbeddedCluster() as cluster:
        yield cluster.namesrv_addr


@pytest.mark.parametrize("name", ["send", "groups", "forgetful", "again"])
def test_a_program_prints_what_the_page_shows(name: str, namesrv_addr: str, tmp_path: Path) -> None:
    """In the order of the page, on one server: the second reads what the first has sent."""
    program, printed = PROGRAMS[name]
    assert DEFAULT_ADDR in program
    script = tmp_path / f"{name}.py"
    script.write_text(program.replace(DEFAULT_ADDR, namesrv_addr), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == printed


def test_every_program_of_the_page_is_run() -> None:
    assert list(PROGRAMS) == ["send", "groups", "forgetful", "again"]
    assert PAGE.count("```python") == len(PROGRAMS)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_can_be_read_on_a_phone_by_day_and_night(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert float(root.attrib["viewBox"].split()[2]) <= PHONE_PX
    assert min(map(int, re.findall(r"(\d+)px", text))) >= FONT_PX_MIN
    assert "@media (prefers-color-scheme:dark)" in text
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    # It lies on a card of its own, so it is legible on any page, whatever the reader's system says.
    card = root.find("{http://www.w3.org/2000/svg}rect")
    assert card is not None
    assert card.attrib["class"] == "card"


def test_there_is_a_picture_for_each_hard_word() -> None:
    assert len(PICTURES) == len(set(PICTURES)) == 5
