"""Keys and TLS come from the environment or a file, never from the arguments of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream.cli import reach
from tests.cli.conftest import Quick


def test_a_key_file_that_cannot_be_read_ends_the_command(tmp_path: Path) -> None:
    line = Quick("127.0.0.1:1")("topic", "list", "--key-file", str(tmp_path / "no")).failed()
    assert f"the key file '{tmp_path / 'no'}' cannot be read: No such file" in line


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("topic list --key-file f --json", "--key-file f topic list --json"),
        ("--key-file=f topic list", "--key-file=f topic list"),
        ("send t -- --key-file f", "send t -- --key-file f"),
        ("topic list --key-file", "--key-file topic list"),
        ("topic list", "topic list"),
    ],
)
def test_the_option_may_stand_behind_the_command(given: str, wanted: str) -> None:
    assert reach.to_the_front(given.split()) == wanted.split()
