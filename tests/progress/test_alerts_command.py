"""``rocketstream alerts``: a test that arrives, and mistakes of its file."""

from __future__ import annotations

from pathlib import Path

from tests.plugins.commands import Quick
from tests.progress.receiver import Receiver


def test_a_dry_run_sends_a_test_and_says_who_took_it(tmp_path: Path) -> None:
    receiver = Receiver()
    try:
        path = tmp_path / "alerts.toml"
        path.write_text(f'[[webhook]]\nname = "ops"\nurl = "{receiver.url}"\n')
        done = Quick()("alerts", "--config", str(path), "--dry-run").worked()
        assert done.out == "ops: taken\n"
        assert receiver.until(1)[0]["event"] == "test"
        receiver.answers = [(404, {}, b"")]
        done = Quick()("alerts", "--config", str(path), "--dry-run")
        assert "ops: HTTP 404" in done.out
        assert "not taken by ops" in done.failed()
    finally:
        receiver.close()


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    assert str(path) in Quick()("alerts", "--config", str(path)).failed()
    path.write_text("[[webhook]")
    assert "is not TOML" in Quick()("alerts", "-c", str(path)).failed()
