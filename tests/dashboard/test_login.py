"""Tokens, sessions and failures: who is let in, until when, and how often one may try."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rocketstream import limits
from rocketstream.dashboard.guard import Settings, check_exposure
from rocketstream.dashboard.users import Role, Sessions, TokenFile, add_token, read_roles
from rocketstream.errors import ConfigurationError
from rocketstream.testing.clock import ManualClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_a_token_is_found_and_never_kept(path: Path) -> None:
    token = add_token(path, "alice", read_roles("act"))
    entry = TokenFile(path).find(token)
    assert entry is not None
    assert entry.name == "alice"
    assert entry.roles == frozenset({Role.LOOK, Role.ACT})
    assert token not in path.read_text()
    assert os.stat(path).st_mode & 0o077 == 0


def test_another_token_is_nobodys(path: Path) -> None:
    token = add_token(path, "alice", read_roles("look"))
    file = TokenFile(path)
    assert file.find(token[:-1]) is None
    assert file.find("") is None
    assert file.find("ä" * 20) is None
    assert file.find("x" * 100_000) is None


def test_a_token_of_the_same_name_replaces_the_one_before(path: Path) -> None:
    first = add_token(path, "alice", read_roles("look"))
    add_token(path, "bob", read_roles("look"))
    second = add_token(path, "alice", read_roles("look,act"))
    file = TokenFile(path)
    assert file.find(first) is None
    assert file.find(second) is not None
    assert sorted(entry.name for entry in file.entries) == ["alice", "bob"]


def test_unknown_roles_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"'admin'.*look, act, export"):
        read_roles("admin")
    with pytest.raises(ConfigurationError):
        read_roles("")


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"tokens": 3}', '{"tokens": [{"name": "a"}]}',
     json.dumps({"tokens": [{"name": "a", "roles": ["look"], "salt": "zz", "digest": "00"}]}),
     json.dumps({"tokens": [{"name": "a", "roles": ["look"], "salt": "", "digest": "00" * 32}]})],
)  # fmt: skip
def test_a_file_that_is_no_file_of_tokens_is_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"tokens\.json"):
        TokenFile(path)


def test_a_file_that_breaks_later_lets_nobody_in(path: Path) -> None:
    token = add_token(path, "alice", read_roles("look"))
    file = TokenFile(path)
    path.write_text("{")
    assert file.find(token) is None
    path.unlink()
    assert file.find(token) is None


def rig(path: Path) -> tuple[ManualClock, TokenFile, Sessions, str]:
    token = add_token(path, "alice", read_roles("look"))
    clock, file = ManualClock(), TokenFile(path)
    return clock, file, Sessions(file, clock), token


def test_a_session_ends_when_idle_and_after_its_time_in_any_case(path: Path) -> None:
    clock, file, sessions, token = rig(path)
    entry = file.find(token)
    assert entry is not None
    idle = sessions.begin(entry)
    clock.advance(limits.DASHBOARD_SESSION_IDLE_MS + 1)
    assert sessions.find(idle) is None
    busy = sessions.begin(entry)
    for _ in range(limits.DASHBOARD_SESSION_MS // limits.DASHBOARD_SESSION_IDLE_MS):
        assert sessions.find(busy) is not None
        clock.advance(limits.DASHBOARD_SESSION_IDLE_MS)
    clock.advance(1)
    assert sessions.find(busy) is None


def test_a_token_that_is_replaced_ends_the_sessions_begun_with_it(path: Path) -> None:
    _, file, sessions, token = rig(path)
    entry = file.find(token)
    assert entry is not None
    session = sessions.begin(entry)
    assert sessions.find(session) is not None
    add_token(path, "alice", read_roles("look"))
    assert sessions.find(session) is None


def test_sessions_are_bounded(path: Path) -> None:
    _, file, sessions, token = rig(path)
    entry = file.find(token)
    assert entry is not None
    first = sessions.begin(entry)
    last = [sessions.begin(entry) for _ in range(limits.DASHBOARD_SESSIONS_MAX)][-1]
    assert sessions.find(first) is None
    assert sessions.find(last) is not None


def test_a_form_token_is_of_one_session(path: Path) -> None:
    _, _, sessions, _ = rig(path)
    assert sessions.is_form_token("a", sessions.form_token("a"))
    assert not sessions.is_form_token("a", sessions.form_token("b"))
    assert not sessions.is_form_token("a", "ä")


ALL = {"has_tokens": True, "is_tls": True, "insecure": False, "may_write": True}


@pytest.mark.parametrize(
    ("host", "change", "is_accepted"),
    [
        ("127.0.0.1", {"has_tokens": False, "is_tls": False}, True),
        ("localhost", {"has_tokens": False, "is_tls": False}, True),
        ("0.0.0.0", {}, True),
        ("0.0.0.0", {"is_tls": False}, False),
        ("0.0.0.0", {"has_tokens": False, "may_write": False}, False),
        ("10.0.0.5", {"is_tls": False, "insecure": True}, True),
        ("10.0.0.5", {"has_tokens": False, "insecure": True, "may_write": False}, True),
        ("10.0.0.5", {"has_tokens": False, "insecure": True}, False),
        ("", {"has_tokens": False}, False),
    ],
)
def test_what_others_can_reach_needs_tls_and_login(
    host: str, change: dict[str, bool], is_accepted: bool
) -> None:
    if is_accepted:
        check_exposure(host, **ALL | change)
        return
    with pytest.raises(ConfigurationError):
        check_exposure(host, **ALL | change)


def test_a_name_that_leads_to_loopback_is_not_known() -> None:
    local = Settings()
    assert local.knows_host("localhost")
    assert local.knows_host("127.0.0.1")
    assert not local.knows_host("rebound.example")
    assert not local.knows_host("10.0.0.5")
    open_ = Settings(host="0.0.0.0", names=frozenset({"queues.example"}))
    assert open_.knows_host("queues.example")
    assert open_.knows_host("10.0.0.5")
    assert not open_.knows_host("rebound.example")
