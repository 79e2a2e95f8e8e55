"""The dashboard as an ASGI application: its routes, their order, and its life cycle."""

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
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rocketstream.admin.safety.previews import Previews
from rocketstream.dashboard.desk import AdminFactory, Desk
from rocketstream.dashboard.guard import Guard
from rocketstream.dashboard.jobs import ChangeFactory, Jobs
from rocketstream.dashboard.pages import (
    brokers,
    changes,
    group,
    letters,
    login,
    messages,
    overview,
    reset,
    spark,
    topic,
)
from rocketstream.dashboard.rates import TopicRates
from rocketstream.dashboard.settings import Settings
from rocketstream.dashboard.site import HERE, Ask, Site, environment, get
from rocketstream.dashboard.users import Sessions
from rocketstream.errors import ConfigurationError
from rocketstream.watch import Collector, History, Update
from rocketstream.watch.metrics import CONTENT_TYPE, scrape

__all__ = ["Cluster", "create_app"]

PAGES: Final = (
    *overview.ROUTES,
    *group.ROUTES,
    *reset.ROUTES,
    *changes.ROUTES,
    *topic.ROUTES,
    *messages.ROUTES,
    *letters.ROUTES,
    *spark.ROUTES,
    *brokers.ROUTES,
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
            *login.ROUTES,
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
            rates.add(update.state)

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
    return {"status": "ok" if update.outage is None else "outage", "ageMs": age_ms}


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
