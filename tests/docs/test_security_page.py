"""What docs/security.md shows works: its accounts, its programs, and every code it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketstream.server.broker.core.acl.rights import RULES
from rocketstream.server.embedded import EmbeddedCluster

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_accounts_and_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (accounts,) = blocks("yaml")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(accounts)
    programs = blocks("python")
    assert len(programs) == 2
    for program in programs:
        exec(program, {})  # noqa: S102 - our own page
    assert (tmp_path / "certificates" / "ca.pem").is_file()
    with EmbeddedCluster(acl="conf") as cluster:
        access = cluster.broker.controller.access
        assert access is not None
        assert set(access.files.rules.accounts) == {"salesdesk", "operator"}


def test_the_page_names_every_code_that_needs_an_admin() -> None:
    (row,) = (line for line in PAGE.splitlines() if line.endswith("| an admin |"))
    assert {int(code) for code in re.findall(r"\d+", row)} == {
        int(code) for code, rule in RULES.items() if rule is None
    }
