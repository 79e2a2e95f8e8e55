"""The checks every request must pass before a page sees it, and the headers of every answer.

Law: a refused request costs no broker anything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.machine import is_loopback
from rocketstream.admin.changes.undo import default_undo_directory
from rocketstream.dashboard.users import Role, Sessions, TokenFile, User
from rocketstream.errors import ConfigurationError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings a dashboard was started with.

    Attributes:
        may_write: whether anything can be changed from it.
        tokens: who may log in; None needs no login.
        is_tls: whether browsers reach the dashboard by https.
        host: the address it listens on.
        names: further names browsers may know it by (``Host`` header), in lower case.
        undo_directory: where the undo files of resets go; None takes the command line's directory.
        refresh_s: how often a page refreshes, in seconds.
        user: the name under which changes are recorded where no login is needed.
        clock: the clock for sessions and ages.
    """

    may_write: bool = False
    tokens: TokenFile | None = None
    is_tls: bool = False
    host: str = "127.0.0.1"
    names: frozenset[str] = frozenset()
    undo_directory: Path | None = None
    refresh_s: float = 5.0
    user: str = "local"
    clock: Clock = SYSTEM_CLOCK

    @property
    def undo_files(self) -> Path:
        """The directory of the undo files of resets."""
        return self.undo_directory or default_undo_directory()

    @property
    def is_loopback(self) -> bool:
        """Whether nothing outside this machine can reach it."""
        return is_loopback(self.host)

    def knows_host(self, name: str) -> bool:
        """Return whether a browser may address this dashboard by a name.

        A page of another site can make its own name resolve to this address (DNS rebinding) and
        read the answers, unless names that are not known are refused. With an address it cannot do
        so.
        """
        if name in LOOPBACK_NAMES or name in self.names or name == self.host.lower():
            return True
        if self.is_loopback:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def check_exposure(
    host: str, *, has_tokens: bool, is_tls: bool, insecure: bool, may_write: bool
) -> None:
    """Refuse an address others can reach without TLS and login, unless ``insecure`` is set.

    Raises:
        ConfigurationError: others could reach the dashboard.
    """
    if is_loopback(host):
        return
    lacking = [
        text
        for has, text in (
            (is_tls, "TLS (--tls-cert and --tls-key)"),
            (has_tokens, "login (--tokens FILE)"),
        )
        if not has
    ]
    if lacking and not insecure:
        raise ConfigurationError(
            f"host {host!r} can be reached from other machines and there is no "
            f"{' and no '.join(lacking)}: give them, use 127.0.0.1, or allow it with --insecure",
            host=host,
        )
    if may_write and not has_tokens:
        raise ConfigurationError(
            f"host {host!r} can be reached from other machines, and with --write anybody there "
            "could change groups: name who may with --tokens FILE",
            host=host,
        )


POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
OPEN: Final = ("/login", "/static/", "/healthz", "/favicon.ico")
"""Paths that are answered without a login."""
READING: Final = ("GET", "HEAD")
_EMBEDDED: Final = "Pages are opened here, not read by pages of another site.\n"


def is_opened(headers: Headers) -> bool:
    """Return whether a page is asked for by this dashboard, a program, or a link that is followed.

    What another site's page embeds shows it nothing, but makes brokers work for each picture.
    """
    if headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
        return True
    asked = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return asked == ("navigate", "document")


class Guard:
    """ASGI middleware: names, origins, sizes, sessions, headers."""

    def __init__(self, app: ASGIApp, settings: Settings, sessions: Sessions) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_new = False
        refused = self._refused(scope, headers)
        if refused is None:
            user, is_new = self._user(scope, headers)
            if user is None:
                refused = self._to_login(scope, headers)
            else:
                scope.setdefault("state", {})["user"] = user

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._dress(scope, MutableHeaders(scope=message), is_new)
            await send(message)

        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        try:
            await self._app(scope, _Bounded(receive), send_guarded)
        except _TooLargeError:  # no answer has begun: pages read a form before they answer
            await too_large()(scope, receive, send_guarded)
        except ClientDisconnect:
            pass  # in the middle of a form: nobody is left to be answered

    # --- refusing ---------------------------------------------------------------------------------

    def _refused(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        name = host_name(host)
        if name is None or not self._settings.knows_host(name):
            return PlainTextResponse(
                "This dashboard is not known by that name. Open it by its address, or start it "
                "with --allow-host NAME.\n",
                421,
            )
        method = scope["method"]
        if method in READING:
            return None if is_opened(headers) else PlainTextResponse(_EMBEDDED, 403)
        if method != "POST":
            return PlainTextResponse(
                "Only GET and POST are answered.\n", 405, {"Allow": "GET, POST"}
            )
        if not self._is_ours(headers, host):
            return PlainTextResponse("This form is of another site, so it is not taken.\n", 403)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            return PlainTextResponse("A form is sent as application/x-www-form-urlencoded.\n", 415)
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return PlainTextResponse("Content-Length is not a number.\n", 400)
        if int(length) > limits.DASHBOARD_BODY_BYTES_MAX:
            return too_large()
        return None

    def _is_ours(self, headers: Headers, host: str) -> bool:
        """Return whether a form comes from a page of this dashboard, as far as the browser says."""
        site = headers.get("sec-fetch-site")
        if site is not None and site != "same-origin":
            return False
        origin = headers.get("origin")
        if origin is None:
            return True  # not sent by a browser; the form's token decides
        return urlsplit(origin).netloc == host and origin != "null"

    # --- the user of a request --------------------------------------------------------------------

    def _user(self, scope: Scope, headers: Headers) -> tuple[User | None, bool]:
        """Return the user and whether a new cookie is due; None where a login is missing."""
        cookie = cookie_name(scope, self._settings)
        given = cookie_value(headers.getlist("cookie"), cookie)
        if self._settings.tokens is None:
            is_new = given is None or len(given) > 64
            session_id = self._sessions.new_id() if is_new or given is None else given
            scope.setdefault("state", {})["session_id"] = session_id
            return User(self._settings.user, frozenset(Role), session_id, False), is_new
        user = self._sessions.find(given) if given else None
        if user is None and scope["method"] in READING:
            user = self._bearer(headers)
        if user is None and any(scope["path"].startswith(open_) for open_ in OPEN):
            user = User("", frozenset(), "", False)
        return user, False

    def _bearer(self, headers: Headers) -> User | None:
        """Return the user of a scraper's header ``Authorization: Bearer TOKEN``."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or self._settings.tokens is None:
            return None
        entry = self._settings.tokens.find(token.strip())
        return None if entry is None else User(entry.name, entry.roles, "")

    def _to_login(self, scope: Scope, headers: Headers) -> Response:
        if "hx-request" in headers:
            # Part of an open page: the whole page goes to the login, and comes back.
            return Response(status_code=401, headers={"HX-Redirect": "/login"})
        accepts = headers.get("accept", "")
        if scope["method"] in READING and "text/html" in accepts:
            back = scope["path"]
            if scope.get("query_string"):
                back += "?" + scope["query_string"].decode("latin-1")
            return RedirectResponse("/login?next=" + quote(back, safe=""), 303)
        return PlainTextResponse("Log in first.\n", 401, {"WWW-Authenticate": "Bearer"})

    # --- answering --------------------------------------------------------------------------------

    def _dress(self, scope: Scope, headers: MutableHeaders, is_new: bool) -> None:
        for name, value in HEADERS.items():
            headers[name] = value
        if not scope["path"].startswith("/static/"):
            headers["Cache-Control"] = "no-store"
        if self._settings.is_tls:
            headers["Strict-Transport-Security"] = "max-age=31536000"
        if is_new:
            session_id = scope["state"]["session_id"]
            headers.append("Set-Cookie", set_cookie(scope, self._settings, session_id))


class _TooLargeError(Exception):
    """A form that is larger than it claimed, or did not say how large it is."""


class _Bounded:
    """Passes on a request's body up to its bound, for any length the request claimed."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._taken = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            if self._taken > limits.DASHBOARD_BODY_BYTES_MAX:
                raise _TooLargeError
        return message


def too_large() -> Response:
    """Return the refusal for a form that is too large."""
    most = limits.DASHBOARD_BODY_BYTES_MAX
    return PlainTextResponse(f"A form has {most:,} bytes at most.\n", 413)


def host_name(host: str) -> str | None:
    """Return the name in a ``Host`` header, without port, in lower case; None if there is none."""
    try:
        parts = urlsplit("//" + host)
        found = parts.hostname
        parts.port  # noqa: B018  (raises where it is no number)
    except ValueError:
        return None
    if not found or parts.path or parts.query or parts.fragment or "@" in host:
        return None
    return found.rstrip(".")


def cookie_name(scope: Scope, settings: Settings) -> str:
    """Return the session cookie's name: browsers separate cookies by host, not by port."""
    port = (scope.get("server") or ("", 0))[1] or 0
    return f"{'__Host-' if settings.is_tls else ''}rocketstream-{port}"


def cookie_value(headers: Iterable[str], name: str) -> str | None:
    """Return the value of one cookie of a request.

    Others may be of programs at other ports of the host, which write them as they like.
    """
    for header in headers:
        for pair in header.split(";"):
            found, _, value = pair.strip().partition("=")
            if found == name and value:
                return value
    return None


def set_cookie(scope: Scope, settings: Settings, session_id: str, *, end: bool = False) -> str:
    """Return the header that sets, or ends, the session cookie."""
    name = cookie_name(scope, settings)
    text = f"{name}={'' if end else session_id}; Path=/; HttpOnly; SameSite=Strict"
    if end:
        text += "; Max-Age=0"
    elif settings.tokens is not None:
        text += f"; Max-Age={limits.DASHBOARD_SESSION_MS // 1_000}"
    return text + ("; Secure" if settings.is_tls else "")
