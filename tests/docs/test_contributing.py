"""The recipes for whoever changes something: the files they name are there."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

RECIPES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Recipes")[1]
NAMED = sorted(set(re.findall(r"`([\w./]+(?:/|\.py|\.md|\.yml))`", RECIPES.split("\n## ")[0])))


def test_every_file_a_recipe_names_is_there() -> None:
    assert len(NAMED) > 15
    roots = (ROOT, ROOT / "src/rocketstream")
    assert [name for name in NAMED if not any((root / name).exists() for root in roots)] == []


def test_every_command_a_recipe_names_is_there() -> None:
    scripts = re.findall(r"python -m scripts\.(\w+)", RECIPES)
    assert scripts
    assert [name for name in scripts if not (ROOT / f"scripts/{name}.py").is_file()] == []
