"""The files that pages and the recipes for whoever changes something name are there."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

RECIPES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Recipes")[1]
NAMED = sorted(set(re.findall(r"`([\w./]+(?:/|\.py|\.md|\.yml))`", RECIPES.split("\n## ")[0])))


def test_every_path_under_a_folder_of_ours_that_a_page_names_is_there() -> None:
    """By itself or as the file of a test; a star stands for several.

    What running makes is not there before.
    """
    made = tuple((ROOT / ".gitignore").read_text("utf-8").replace("\n/", "\n").split())
    folders = "tests|src|scripts|benchmarks|examples|docs|demo"
    named = [
        (page.name, found.rstrip("."))
        for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
        for found in re.findall(
            rf"(?<![\w/.-])`?((?:{folders})/[\w./*-]+)", page.read_text("utf-8")
        )
        # Another page names files by their folder under tests/.
        if page.name != "coverage.md" and not found.startswith(made)
    ]
    assert len(named) > 100
    assert [(page, name) for page, name in named if not any(ROOT.glob(name))] == []


def test_every_file_a_recipe_names_is_there() -> None:
    assert len(NAMED) > 15
    roots = (ROOT, ROOT / "src/rocketstream")
    assert [name for name in NAMED if not any((root / name).exists() for root in roots)] == []


def test_every_command_a_recipe_names_is_there() -> None:
    scripts = re.findall(r"python -m scripts\.(\w+)", RECIPES)
    assert scripts
    assert [name for name in scripts if not (ROOT / f"scripts/{name}.py").is_file()] == []
