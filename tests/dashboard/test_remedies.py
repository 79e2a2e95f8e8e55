"""Commands in sentences, and the pages that do the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rocketstream.admin
from rocketstream.dashboard.pages.changes import KINDS
from rocketstream.dashboard.words import parts


@pytest.mark.parametrize(
    ("command", "path", "parameters"),
    [
        ("group resume billing", "/group/resume", {"name": "billing"}),
        (
            "group reset billing orders --queue broker-a:0 --to-offset 13",
            "/group/reset",
            {"group": "billing", "topic": "orders", "queue": "broker-a:0", "target": "offset",
             "offset": "13"},
        ),
        (
            "group reset 'a b' orders --to-latest",
            "/group/reset",
            {"group": "a b", "topic": "orders", "target": "latest"},
        ),
        ("group running-info billing c@1 --stack", "/group#members-title", {"name": "billing"}),
        ("dlq redrive billing --cause 3fa", "/redrive", {"group": "billing", "cause": "3fa"}),
        ("dlq", "/letters", {}),
        ("topic update orders --perm rw", "/topic/settings", {"name": "orders", "perm": "RW"}),
        ("message view orders 7F00", "/message", {"topic": "orders", "id": "7F00"}),
        (
            "message search orders --broker a --queue 3 --offset 7 --oldest-first",
            "/messages",
            {"topic": "orders", "broker": "a", "queue": "3", "offset": "7", "newest": "0"},
        ),
        ("group list", "/", {}),
        ("broker config broker-a", None, {}),
        ("group running-info", None, {}),
        ("group 'torn", None, {}),
    ],
)  # fmt: skip
def test_a_command_leads_to_the_page_that_does_it(
    command: str, path: str | None, parameters: dict[str, str]
) -> None:
    before, part, after = parts(f"mend it, then `rocketstream {command}` helps")
    assert (before.text, after.text) == ("mend it, then ", " helps")
    assert (part.text, part.path) == (f"rocketstream {command}", path)
    assert dict(part.parameters) == parameters


def test_a_sentence_without_a_command_stays_as_it_is() -> None:
    assert [part.text for part in parts("all is well")] == ["all is well"]


def test_every_remedy_of_a_cause_that_names_a_group_has_a_page() -> None:
    text = "".join(
        path.read_text() for path in Path(rocketstream.admin.__file__).parent.rglob("*.py")
    )
    text = re.sub(r'"\s*f?"', "", text)
    found = set(re.findall(r"`(rocketstream (?:group|dlq|message) [^`\n]*\{[^`\n]*)`", text))
    assert len(found) >= 4
    for command in found:
        example = re.sub(r"\{[^}]*\}", "x", command)
        (part,) = parts(f"`{example}`")
        assert part.path is not None, command


def test_pages_of_changes_are_named_by_what_they_change() -> None:
    assert {path.split("/")[1] for path in KINDS} == {kind.noun for kind in KINDS.values()}
