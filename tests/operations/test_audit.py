"""The audit file: a line before and after, on the disk, or no change at all."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rocketstream.admin import AuditLog
from rocketstream.admin.safety import ChangeGate, default_audit_path
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ClientStateError


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def audit(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "deep" / "audit.jsonl", who="ops", face="dashboard")


def gate(audit: AuditLog) -> ChangeGate:
    return ChangeGate(BlockingAdminClient("127.0.0.1:1"), 1_000, audit)


def test_change_is_written_before_it_is_made_and_after(audit: AuditLog) -> None:
    with gate(audit).open("group.reset", {"group": "g"}, {"q": 1}) as change:
        (begin,) = lines(audit.path)
        change.after = {"q": 2}
    begin, end = lines(audit.path)
    assert (begin["phase"], begin["before"], begin["cluster"]) == ("begin", {"q": 1}, "127.0.0.1:1")
    assert (begin["who"], begin["face"], begin["arguments"]) == ("ops", "dashboard", {"group": "g"})
    assert (end["phase"], end["after"], end["id"]) == ("done", {"q": 2}, begin["id"])
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other locks")
def test_where_a_file_system_has_no_locks_changes_are_written_without(
    audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with gate(audit).open("group.reset", {"group": "g"}, {}):
        pass
    assert [line["phase"] for line in lines(audit.path)] == ["begin", "done"]


def test_change_that_fails_is_written_with_what_was_done_of_it(audit: AuditLog) -> None:
    def delete() -> None:
        with gate(audit).open("topic.delete", {}) as change:
            change.after = ["broker-a"]
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        delete()
    _, end = lines(audit.path)
    assert (end["phase"], end["error"], end["after"]) == (
        "failed", "ValueError: half way", ["broker-a"],
    )  # fmt: skip


def test_line_that_was_cut_off_spoils_no_other(audit: AuditLog) -> None:
    """A full disk or a power failure leaves half a line; the next one begins on its own."""
    audit.path.parent.mkdir()
    audit.path.write_bytes(b'{"at": 1, "pha')
    audit.begin("topic.create", "c", {}, None)
    first, second = audit.path.read_bytes().splitlines()
    assert first == b'{"at": 1, "pha'
    assert json.loads(second)["operation"] == "topic.create"


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    def write() -> None:
        log = AuditLog(path)  # one of its own, as another process has
        for _ in range(50):
            log.begin("group.reset", "c", {"much": "x" * 5_000}, None)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(path)) == 200


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_nobody_else_writes_while_a_line_is_written(
    audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the line another process is writing looks like one that was cut off."""
    import fcntl

    write, refused = os.write, []

    this_thread = threading.get_ident()

    def look_and_write(handle: int, data: bytes) -> int:
        if threading.get_ident() != this_thread:  # a server that another test keeps running
            return write(handle, data)
        with audit.path.open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(1)
        return write(handle, data)

    monkeypatch.setattr(os, "write", look_and_write)
    audit.begin("group.reset", "c", {}, None)
    assert refused == [1]


def test_file_that_cannot_be_written_keeps_the_change_from_being_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    audit = AuditLog(tmp_path / "file" / "audit.jsonl")
    made = []

    def delete() -> None:
        with gate(audit).open("topic.delete", {}):
            made.append(1)

    with pytest.raises(ClientStateError, match="no change is made that cannot be recorded"):
        delete()
    assert made == []


def break_file(audit: AuditLog) -> None:
    """As a full disk would: from here on no line can be written."""
    audit.path.unlink()
    audit.path.mkdir()


def test_change_whose_end_cannot_be_written_is_told_as_made(audit: AuditLog) -> None:
    def delete() -> None:
        with gate(audit).open("topic.delete", {}):
            break_file(audit)

    with pytest.raises(ClientStateError, match="the change was made; the file has its beginning"):
        delete()


def test_failed_change_raises_its_own_error_though_its_end_cannot_be_written(
    audit: AuditLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does the audit file say that nothing was made."""

    def delete() -> None:
        with gate(audit).open("topic.delete", {}) as change:
            change.after = ["broker-a"]
            break_file(audit)
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way") as failed:
        delete()
    (note,) = failed.value.__notes__
    assert note in caplog.text
    assert "some of it may have been made" in note
    assert "no change is made" not in note


def test_what_is_no_text_is_written_all_the_same(audit: AuditLog) -> None:
    audit.begin("topic.create", "c", {"path": Path("x"), "odd": "\udc80\n"}, {"a": b"bytes"})
    (line,) = lines(audit.path)
    assert line["arguments"]["path"] == "x"


def test_file_is_where_states_of_programs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_audit_path() == Path("/state/rocketstream/audit.jsonl")
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/ops")
    assert default_audit_path() == Path("/home/ops/.local/state/rocketstream/audit.jsonl")
