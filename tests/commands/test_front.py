"""The command as such: help, version, quick start, missing parts."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from tests.plugins.commands import TIMEOUT_S, Cli, environment

COMMANDS = (
    ("serve",), ("topic", "create"), ("topic", "list"), ("topic", "status"), ("send",),
    ("consume",), ("group", "list"), ("group", "lag"), ("ingest",),
)  # fmt: skip
HEAVY = ("asyncio", "uvloop", "orjson", "pyspark", "numpy", "pyarrow", "rich.table")


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_help_is_complete_and_has_an_example(command: tuple[str, ...]) -> None:
    text = Cli()(*command, "--help").worked().out
    assert "Usage: rocketstream " + " ".join(command) in text
    assert "Example" in text
    if command != ("serve",):
        assert "NAMESRV_ADDR" in text


def test_version_is_the_package_version() -> None:
    assert Cli()("--version").worked().out == f"rocketstream {metadata.version('rocketstream')}\n"


def test_the_name_server_may_stand_before_the_command() -> None:
    """`-n` is for every command, wherever it stands."""
    done = Cli()("-n", "127.0.0.1:1", "topic", "list")
    assert done.code == 1
    assert "127.0.0.1:1" in done.err


def test_no_command_shows_help_as_a_usage_error() -> None:
    done = Cli()()
    assert done.code == 2
    assert "Commands" in done.out
    done = Cli()("topic")
    assert done.code == 2
    assert "create" in done.out + done.err
    assert "error" not in done.err


def test_help_needs_no_server_client_or_spark() -> None:
    """The command starts quickly because it imports only what it runs."""
    code = (
        "import sys; from rocketstream.cli.main import main; main(['topic', '--help']); "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=environment(),
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_that_looks_imports_no_more_than_it_needs(cli: Cli) -> None:
    """Most of a short command's time is importing: docs/performance.md says how much."""
    unneeded = (
        "rocketstream.client.instance.engine", "rocketstream.client.producer",
        "rocketstream.client.consumer",
        "rocketstream.server", "rocketstream.cli.group_changes", "rocketstream.protocol.sql92",
        "lz4", "zstandard", "_hashlib", "random",
        "asyncio", "subprocess", "pydantic", "typer", "rich",
        "pyspark", "numpy", "starlette", "textual", "mcp",
    )  # fmt: skip
    code = (
        "import sys; from rocketstream.cli.main import main; "
        "code = main(['topic', 'list']) + main(['broker', 'list']) + main(['group', 'list']); "
        f"print(code, [m for m in {unneeded!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=environment(cli.namesrv),
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "0 []"


def test_core_install_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['click'] = None; import importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda n, *a: None if n == 'click' else find(n, *a); "
        "from rocketstream.cli.main import main; sys.exit(main(['topic', 'list']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 1
    assert "pip install 'rocketstream[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1
