"""The dashboard as an ASGI application: its routes, their order, its life cycle, its login.

Law: a token is compared and not kept; where no login is needed, none is possible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rocketstream.admin.safety import Previews
from rocketstream.dashboard.desk import AdminFactory, Desk
from rocketstream.dashboard.guard import Guard, Settings, set_cookie
from rocketstream.dashboard.jobs import ChangeFactory, Jobs
from rocketstream.dashboard.pages import changes, group, letters, messages, overview, topic
from rocketstream.dashboard.site import HERE, Ask, Site, environment, get, post, site_of
from rocketstream.dashboard.users import Role, Sessions, User
from rocketstream.errors import ConfigurationError
from rocketstream.watch import Collector, History, Update
from rocketstream.watch.metrics import CONTENT_TYPE, scrape
from rocketstream.watch.series import TopicRates

__all__ = ["Cluster", "create_app"]

STALE_INTERVALS: Final = 5
STALE_MS: Final = 60_000
"""A collection whose newest state is older than so many of its intervals, and than this, hangs."""
PAGES: Final = (
    *overview.ROUTES,
    *group.ROUTES,
    *changes.ROUTES,
    *topic.ROUTES,
    *messages.ROUTES,
    *letters.ROUTES,
)
"""The pages of one cluster."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster of a dashboard.

    Attributes:
        name: its name in the heading, and in addresses where there are several.
        collector: provides the figures of pages; started and closed by the caller, who may share
            it.
        admin_factory: makes the Admin for figures no sweep has; closed with the application.
        history: the figures of charts; None shows no charts. Closed by the caller.
        change_factory: makes the Admin of each change, which records who makes the change.
    """

    name: str
    collector: Collector
    admin_factory: AdminFactory
    history: History | None = None
    change_factory: ChangeFactory | None = None


def create_app(*clusters: Cluster, settings: Settings | None = None) -> Starlette:
    """Return the application.

    Args:
        clusters: one or more; pages of several are below ``/cluster/NAME``, and ``/`` has them all.

    Raises:
        ConfigurationError: there is no cluster, two have one name, or a name is empty or has a
            ``/``; or the settings allow changes, but a cluster has no ``change_factory``.
    """
    settings = settings or Settings()
    names = [cluster.name for cluster in clusters]
    if not clusters or len(set(names)) < len(names):
        raise ConfigurationError(f"the clusters are {names}; each takes a name of its own")
    if len(names) > 1 and any(not name or "/" in name for name in names):
        raise ConfigurationError(f"the clusters are {names}; a name is not empty and has no '/'")
    if settings.may_write and any(cluster.change_factory is None for cluster in clusters):
        raise ConfigurationError("may_write takes a change_factory: changes are written down")
    sessions = Sessions(settings.tokens, settings.clock)
    pages = [*PAGES, get("/metrics", metrics)]

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        sites: dict[str, Site] = {}
        environment()  # compiled now, not when the first visitor waits for it
        with ExitStack() as open_:
            for cluster in clusters:
                base = f"/cluster/{quote(cluster.name, safe='')}" if len(clusters) > 1 else ""
                site = _site(cluster, base, sites, settings, sessions)
                sites[cluster.name] = open_.enter_context(site)
            app.state.sites = sites
            yield

    return Starlette(
        routes=[
            *(pages if len(clusters) == 1 else (get("/", overview.clusters),)),
            Route("/login", login, methods=["GET", "POST"]),
            post("/logout", logout, Role.LOOK),
            Route("/healthz", healthz, methods=["GET"]),
            Mount("/static", _Static(directory=HERE / "static"), name="static"),
            *([] if len(clusters) == 1 else [Mount("/cluster/{cluster}", routes=pages)]),
        ],
        middleware=[Middleware(Guard, settings=settings, sessions=sessions)],
        exception_handlers={HTTPException: _not_there, 500: _broken},
        lifespan=life,
    )


@contextmanager
def _site(
    cluster: Cluster,
    base: str,
    sites: Mapping[str, Site],
    settings: Settings,
    sessions: Sessions,
) -> Iterator[Site]:
    """Open the desk and the collection, for as long as the application runs."""
    collector, rates = cluster.collector, TopicRates()

    def swept(update: Update) -> None:
        if update.state is not None and update.outage is None:
            rates.add(update.state, is_first=update.before is None)

    with ExitStack() as open_:
        desk = Desk(cluster.admin_factory, settings.clock)
        open_.callback(desk.close)
        jobs = None
        if settings.may_write and cluster.change_factory is not None:
            jobs = Jobs(cluster.change_factory, settings.clock)
            open_.callback(jobs.close)
        swept(collector.update())
        open_.callback(collector.subscribe(swept))
        yield Site(
            name=cluster.name,
            base=base,
            collector=collector,
            desk=desk,
            settings=settings,
            sessions=sessions,
            rates=rates,
            plans=Previews(settings.clock),
            sites=sites,
            jobs=jobs,
            history=cluster.history,
        )


async def healthz(request: Request) -> Response:
    """Answer whether the collection is alive: 503 where no sweep was answered, or none lately.

    Of several clusters one that answers is enough: a restart would not help the others.
    """
    sites: Mapping[str, Site] = request.app.state.sites
    told = {name: _health(site) for name, site in sites.items()}
    health = next((each for each in told.values() if each["status"] == "ok"), None)
    code = 503 if health is None else 200
    if len(told) > 1:
        status = "ok" if health is not None else "outage"
        return JSONResponse({"status": status, "clusters": told}, code)
    return JSONResponse(next(iter(told.values())), code)


def _health(site: Site) -> dict[str, Any]:
    update = site.collector.update()
    if update.state is None:
        return {"status": "starting"}
    age_ms = site.now_ms - update.state.taken_ms
    if update.outage is not None:
        return {"status": "outage", "ageMs": age_ms}
    stale_ms = max(STALE_INTERVALS * site.collector.cost().interval_s * 1_000, STALE_MS)
    return {"status": "ok" if age_ms <= stale_ms else "stale", "ageMs": age_ms}


async def metrics(ask: Ask) -> Response:
    """Answer Prometheus with the result of the last sweep; a scrape asks no broker."""
    text = await ask.site.desk.locally(lambda: scrape(ask.site.collector))
    return Response(text, media_type=CONTENT_TYPE)


class _Static(StaticFiles):
    """The package's static files; browsers ask each time whether their copies are still current."""

    def file_response(self, *args: object, **more: object) -> Response:
        answer = super().file_response(*args, **more)  # type: ignore[arg-type]
        answer.headers["Cache-Control"] = "no-cache"
        return answer


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sites: Mapping[str, Site] = request.app.state.sites
    first = next(iter(sites.values()))
    site = sites.get(request.path_params.get("cluster", first.name), first)
    ask = Ask(request, site, request.state.user)
    sentence = "there is no such page" if error.status_code == 404 else str(error.detail)
    return ask.show("error.html", error.status_code, status=error.status_code, sentence=sentence)


async def _broken(request: Request, error: Exception) -> Response:
    return PlainTextResponse("The dashboard failed to answer; its log has the cause.\n", 500)


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
