"""The dashboard as an ASGI application: its routes, their order, and its life cycle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

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
    group,
    letters,
    login,
    messages,
    overview,
    reset,
    spark,
    topic,
    trace,
)
from rocketstream.dashboard.pages import (
    jobs as job_pages,
)
from rocketstream.dashboard.rates import TopicRates
from rocketstream.dashboard.sessions import Sessions
from rocketstream.dashboard.settings import Settings
from rocketstream.dashboard.site import HERE, Ask, Site, environment, get
from rocketstream.errors import ConfigurationError
from rocketstream.watch import Collector, History, Update
from rocketstream.watch.metrics import CONTENT_TYPE, scrape

__all__ = ["create_app"]


def create_app(
    collector: Collector,
    admin_factory: AdminFactory,
    settings: Settings | None = None,
    *,
    history: History | None = None,
    change_factory: ChangeFactory | None = None,
) -> Starlette:
    """Return the application.

    Args:
        collector: provides the figures of pages; started and closed by the caller, who may share
            it.
        admin_factory: makes the Admin for figures no sweep has; closed with the application.
        settings: who may do what.
        history: the figures of charts; None shows no charts. Closed by the caller.
        change_factory: makes the Admin of each change, which records who makes the change.

    Raises:
        ConfigurationError: the settings allow changes, but there is no ``change_factory``.
    """
    settings = settings or Settings()
    if settings.may_write and change_factory is None:
        raise ConfigurationError("may_write takes a change_factory: changes are written down")
    sessions = Sessions(settings.tokens, settings.clock)

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        changing = change_factory if settings.may_write else None
        with _site(collector, admin_factory, changing, settings, sessions, history) as site:
            app.state.site = site
            yield

    return Starlette(
        routes=[
            *overview.ROUTES,
            *group.ROUTES,
            *reset.ROUTES,
            *topic.ROUTES,
            *messages.ROUTES,
            *trace.ROUTES,
            *letters.ROUTES,
            *spark.ROUTES,
            *job_pages.ROUTES,
            *brokers.ROUTES,
            *login.ROUTES,
            get("/metrics", metrics),
            Route("/healthz", healthz, methods=["GET"]),
            Mount("/static", _Static(directory=HERE / "static"), name="static"),
        ],
        middleware=[Middleware(Guard, settings=settings, sessions=sessions)],
        exception_handlers={HTTPException: _not_there, 500: _broken},
        lifespan=life,
    )


@contextmanager
def _site(
    collector: Collector,
    admin_factory: AdminFactory,
    change_factory: ChangeFactory | None,
    settings: Settings,
    sessions: Sessions,
    history: History | None,
) -> Iterator[Site]:
    """Open the desk and the collection, for as long as the application runs."""
    rates = TopicRates()

    def swept(update: Update) -> None:
        if update.state is not None and update.outage is None:
            rates.add(update.state)

    with ExitStack() as open_:
        desk = Desk(admin_factory, settings.clock)
        open_.callback(desk.close)
        jobs = None
        if change_factory is not None:
            jobs = Jobs(change_factory, settings.clock)
            open_.callback(jobs.close)
        swept(collector.update())
        open_.callback(collector.subscribe(swept))
        yield Site(
            collector=collector,
            desk=desk,
            settings=settings,
            sessions=sessions,
            templates=environment(),
            rates=rates,
            plans=Previews(settings.clock),
            jobs=jobs,
            history=history,
        )


async def healthz(request: Request) -> Response:
    """Answer whether the collection is alive: 503 where no sweep was answered, or none lately."""
    site: Site = request.app.state.site
    update = site.collector.update()
    if update.state is None:
        return JSONResponse({"status": "starting"}, 503)
    age_ms = site.now_ms - update.state.taken_ms
    told = {"status": "ok" if update.outage is None else "outage", "ageMs": age_ms}
    return JSONResponse(told, 200 if update.outage is None else 503)


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
    ask = Ask(request, request.app.state.site, request.state.user)
    sentence = "there is no such page" if error.status_code == 404 else str(error.detail)
    return ask.show("error.html", error.status_code, status=error.status_code, sentence=sentence)


async def _broken(request: Request, error: Exception) -> Response:
    return PlainTextResponse("The dashboard failed to answer; its log has the cause.\n", 500)
