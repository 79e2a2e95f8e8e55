"""Logging in and out.

Law: a token is compared and not kept; where no login is needed, none is possible.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rocketstream.dashboard.guard import set_cookie
from rocketstream.dashboard.site import Ask, post, site_of
from rocketstream.dashboard.users import Role, User


def local_path(text: str) -> str:
    """Return a path of this site; any other address is replaced by the overview."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\"))
    return text if is_local and text.isprintable() else "/"


async def login(request: Request) -> Response:
    """Show the login form, or take it: the only form that has no session yet.

    Origin and SameSite keep pages of other sites from sending it. Such a page could only log
    somebody in, and would need a valid token for that.
    """
    site = site_of(request)
    user: User = request.state.user
    back = local_path(request.query_params.get("next", "/"))
    if site.settings.tokens is None or user.is_logged_in:
        return RedirectResponse(back, 303)
    ask = Ask(request, site, user)
    if request.method == "GET":
        return ask.show("login.html", title="Log in", back=back, problem=None)
    async with request.form(max_files=0, max_fields=8) as form:
        given = form.get("token", "")
        back = local_path(str(form.get("next", "/")))
    entry = site.settings.tokens.find(given.strip() if isinstance(given, str) else "")
    if entry is None:
        problem = "This token is not known."
        return ask.show("login.html", 401, title="Log in", back=back, problem=problem)
    answer = RedirectResponse(back, 303)
    cookie = set_cookie(request.scope, site.settings, site.sessions.begin(entry))
    answer.headers.append("Set-Cookie", cookie)
    return answer


async def logout(ask: Ask) -> Response:
    """End the session."""
    ask.site.sessions.end(ask.user.session_id)
    answer = RedirectResponse("/login", 303)
    answer.headers.append(
        "Set-Cookie", set_cookie(ask.request.scope, ask.site.settings, "", end=True)
    )
    return answer


ROUTES: Final = (
    Route("/login", login, methods=["GET", "POST"]),
    post("/logout", logout, Role.LOOK),
)
