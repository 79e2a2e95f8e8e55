"""What docs/embedded.md shows works, and it names every setting there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from rocketstream.server.embedded import EmbeddedSettings
from rocketstream.server.store import RetentionConfig

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "embedded.md").read_text("utf-8")


def named(heading: str) -> list[str]:
    """Return what the first column of a table names."""
    table = PAGE.partition(heading)[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


@pytest.mark.parametrize(
    ("heading", "kind"),
    [("| Setting |", EmbeddedSettings), ("| Field |", RetentionConfig)],
)
def test_every_setting_is_told_once(heading: str, kind: type) -> None:
    assert sorted(named(heading)) == sorted(field.name for field in dataclasses.fields(kind))


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, {})  # noqa: S102 - our own page
    assert (tmp_path / "store" / "commitlog").is_dir()
