"""What a request must pass: names, origins, form tokens, logins, roles; and what answers carry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message

from rocketstream import limits
from rocketstream.dashboard import TokenFile
from rocketstream.dashboard.users import add_token, read_roles
from tests.dashboard.rig import HOST, TOKEN, browsing, form_token


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "tokens.json"
    return {
        "path": str(path),
        **{name: add_token(path, name, read_roles(name)) for name in ("look", "act", "export")},
    }


def log_in(browser: TestClient, token: str) -> None:
    answer = browser.post("/login", data={"token": token, "next": "/topics"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics")


def test_every_answer_carries_a_strict_policy() -> None:
    with browsing() as (browser, _):
        for path in ("/", "/nothing", "/static/dashboard.css", "/healthz", "/group"):
            headers = browser.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert "frame-ancestors 'none'" in policy


def test_pages_hold_no_script_or_style_of_their_own_and_nothing_from_outside() -> None:
    with browsing() as (browser, _):
        for path in ("/", "/topics", "/topic?name=orders", "/group?name=billing", "/brokers"):
            answer = browser.get(path)
            assert answer.status_code == 200, path
            text = answer.text
            assert "<style" not in text
            assert " style=" not in text
            assert " onclick=" not in text
            assert "<script>" not in text
            assert "http://" not in text.replace(HOST, "").replace("http://www.w3.org", "")
            assert "https://" not in text


def test_a_name_that_is_not_ours_is_refused() -> None:
    """DNS rebinding: a page of another site makes its own name lead to loopback."""
    with browsing() as (browser, _):
        for host in (
            "evil.example",
            "evil.example:8976",
            "127.0.0.1.evil.example",
            "",
            "a@b",
            "x:y:z",
        ):
            assert browser.get("/", headers={"host": host}).status_code == 421, host
        for host in ("localhost:1", "127.0.0.1", "[::1]:8976", "LOCALHOST"):
            assert browser.get("/", headers={"host": host}).status_code == 200, host


def test_methods_other_than_get_and_post_are_refused() -> None:
    with browsing() as (browser, _):
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert browser.request(method, "/").status_code == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": HOST},
    ],
)
def test_a_form_of_another_site_is_refused(tokens: dict[str, str], headers: dict[str, str]) -> None:
    with browsing(tokens=TokenFile(Path(tokens["path"]))) as (browser, _):
        log_in(browser, tokens["look"])
        given = form_token(browser)
        assert (
            browser.post("/logout", data={"form_token": given}, headers=headers).status_code == 403
        )
        answer = browser.post("/logout", data={"form_token": given}, headers={"origin": HOST})
        assert answer.status_code == 303


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_that_another_site_embeds_asks_no_broker(site: str) -> None:
    """Each picture of a page anywhere could have brokers read thousands of messages."""
    with browsing() as (browser, _):
        for mode, dest, code in (
            ("no-cors", "image", 403),
            ("cors", "empty", 403),
            ("navigate", "iframe", 403),
            ("navigate", "document", 200),  # a link that is followed
        ):
            told = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
            assert browser.get("/topics", headers=told).status_code == code, told


def test_who_has_not_logged_in_is_told_no_name_server(tokens: dict[str, str]) -> None:
    name = "10.1.2.3:9876"
    with browsing(name=name, tokens=TokenFile(Path(tokens["path"]))) as (browser, _):
        log_in(browser, tokens["look"])
        assert name in browser.get("/topics").text
        browser.cookies.clear()
        for path in ("/login", "/static/nothing"):
            assert name not in browser.get(path).text


def test_a_form_without_its_token_changes_nothing(tokens: dict[str, str]) -> None:
    with browsing(tokens=TokenFile(Path(tokens["path"]))) as (browser, _):
        log_in(browser, tokens["look"])
        for given in ("", "0" * 64, "ä"):
            assert browser.post("/logout", data={"form_token": given}).status_code == 403
        assert browser.get("/").status_code == 200  # still logged in


def test_a_form_of_another_kind_or_size_is_refused() -> None:
    with browsing() as (browser, _):
        assert browser.post("/logout", json={"form_token": "x"}).status_code == 415
        large = {"form_token": "x" * limits.DASHBOARD_BODY_BYTES_MAX}
        assert browser.post("/logout", data=large).status_code == 413


def test_a_form_that_hides_its_size_is_refused_like_one_that_tells_it() -> None:
    with browsing() as (browser, _):
        parts = (b"form_token=" + b"x" * 10_000 for _ in range(8))
        kind = {"content-type": "application/x-www-form-urlencoded"}
        answer = browser.post("/logout", content=parts, headers=kind)
        assert answer.status_code == 413
        assert f"{limits.DASHBOARD_BODY_BYTES_MAX:,} bytes at most" in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_form_whose_sender_goes_away_is_nothing_to_speak_of() -> None:
    came: list[Message] = [
        {"type": "http.request", "body": b"form_", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return came.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async def ask(app: ASGIApp) -> None:
        await app(scope, receive, send)

    with browsing() as (browser, _):
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/logout",
            "query_string": b"",
            "headers": [
                (b"host", b"127.0.0.1"),
                (b"content-type", b"application/x-www-form-urlencoded"),
            ],
        }
        asyncio.run(ask(browser.app))
    assert not came


def test_without_a_login_a_page_leads_to_it_and_back(tokens: dict[str, str]) -> None:
    with browsing(tokens=TokenFile(Path(tokens["path"]))) as (browser, rig):
        answer = browser.get("/group?name=a%20b")
        assert answer.headers["location"] == "/login?next=%2Fgroup%3Fname%3Da%2520b"
        assert browser.get("/", headers={"accept": "*/*"}).status_code == 401
        part = browser.get("/", headers={"hx-request": "true"})
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "/login")
        assert "billing" not in browser.get("/login").text
        assert rig.asked.sweeps == 1


def test_a_login_leads_to_pages_of_this_site_alone(tokens: dict[str, str]) -> None:
    with browsing(tokens=TokenFile(Path(tokens["path"]))) as (browser, _):
        for back in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:1"):
            answer = browser.post("/login", data={"token": tokens["look"], "next": back})
            assert answer.headers["location"] == "/", back
            browser.cookies.clear()


def test_the_session_cookie_is_kept_from_scripts_and_other_sites(tokens: dict[str, str]) -> None:
    with browsing(tokens=TokenFile(Path(tokens["path"]))) as (browser, _):
        cookie = browser.post("/login", data={"token": tokens["look"]}).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Secure" not in cookie
    file = TokenFile(Path(tokens["path"]))
    with browsing(base="https://127.0.0.1:8976", tokens=file, is_tls=True) as (browser, _):
        cookie = browser.post("/login", data={"token": tokens["look"]}).headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert "; Secure" in cookie


def test_logging_out_ends_the_session(tokens: dict[str, str]) -> None:
    with browsing(tokens=TokenFile(Path(tokens["path"]))) as (browser, _):
        log_in(browser, tokens["look"])
        kept = dict(browser.cookies)
        browser.post("/logout", data={"form_token": form_token(browser)})
        browser.cookies.update(kept)  # whoever copied the cookie
        assert browser.get("/").status_code == 303


def test_wrong_tokens_keep_nobody_out(tokens: dict[str, str]) -> None:
    """Behind a proxy all have one address."""
    with browsing(tokens=TokenFile(Path(tokens["path"]))) as (browser, _):
        for _ in range(150):
            assert browser.post("/login", data={"token": "wrong"}).status_code == 401
        log_in(browser, tokens["look"])


def test_a_scraper_names_itself_by_a_header_and_cannot_change_anything(
    tokens: dict[str, str],
) -> None:
    with browsing(tokens=TokenFile(Path(tokens["path"])), may_write=True) as (browser, _):
        bearer = {"authorization": f"Bearer {tokens['act']}"}
        assert browser.get("/", headers=bearer).status_code == 200
        assert browser.get("/", headers={"authorization": "Bearer no"}).status_code == 303
        assert browser.post("/logout", data={"form_token": ""}, headers=bearer).status_code == 401


def test_a_page_names_who_looks_and_whether_anything_can_be_changed(tokens: dict[str, str]) -> None:
    file = TokenFile(Path(tokens["path"]))
    for may_write, name, text in (
        (False, "act", "read-only"),
        (True, "look", "read-only"),
        (True, "act", "Groups can be changed from here"),
    ):
        with browsing(tokens=file, may_write=may_write) as (browser, _):
            log_in(browser, tokens[name])
            page = browser.get("/").text
            assert text in page
            assert f'<span class="user">{name}</span>' in page
            assert TOKEN.search(page)


@pytest.mark.parametrize("other", ['prefs={"theme":"dark"}', "name=J\u00f6rg", "last=a b", "x"])
def test_cookies_of_other_programs_at_the_host_hide_no_login(
    tokens: dict[str, str], other: str
) -> None:
    """Browsers send the cookies of all ports of a host."""
    with browsing(tokens=TokenFile(Path(tokens["path"]))) as (browser, _):
        log_in(browser, tokens["look"])
        own = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        headers = {b"cookie": f"{other}; {own}".encode("latin-1")}
        assert browser.get("/topics", headers=headers).status_code == 200


def test_anonymous_visitors_keep_one_session() -> None:
    with browsing() as (browser, _):
        first = browser.get("/")
        assert "set-cookie" in first.headers
        assert "set-cookie" not in browser.get("/topics").headers
