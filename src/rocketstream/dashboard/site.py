"""The common parts of all pages: the shared collection, the desk, the templates, and the user.

Law: a page asks brokers only through the desk, and changes something only by a form that was
checked here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from rocketstream import limits
from rocketstream._util.when import moment_ms
from rocketstream.admin.core import words as figures
from rocketstream.admin.core.words import plural
from rocketstream.admin.rows import MemberRow
from rocketstream.admin.safety import PreviewGoneError, Previews
from rocketstream.dashboard import words
from rocketstream.dashboard.desk import Desk, DeskBusyError, DeskLateError
from rocketstream.dashboard.guard import Settings
from rocketstream.dashboard.jobs import Jobs, JobsBusyError
from rocketstream.dashboard.users import Role, Sessions, User
from rocketstream.errors import (
    AccessDeniedError,
    BrokerError,
    ConfigurationError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketstream.protocol.codes import version_name
from rocketstream.watch import Collector, History, Update
from rocketstream.watch.series import TopicRates

T = TypeVar("T")

HERE: Final = Path(__file__).parent
FIELD_CHARS_MAX: Final = 1_024
SHORT_CHARS: Final = 32
"""A name of no more characters is not broken in a table."""
READ_ONLY: Final = "this dashboard only shows: start it with --write to change things"


class PageError(RocketMQError):
    """An answer in place of a page: a status and a sentence."""

    condition = "PAGE"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Site:
    """Everything a page may use of its cluster, and what clusters share.

    Attributes:
        name: the cluster's name, for the heading.
        base: the beginning of all addresses of its pages; empty where there is one cluster.
        sites: those of all clusters by name, this one among them.
    """

    name: str
    base: str
    collector: Collector
    desk: Desk
    settings: Settings
    sessions: Sessions
    rates: TopicRates
    plans: Previews[Any]
    sites: Mapping[str, Site]
    jobs: Jobs | None = None
    history: History | None = None

    @property
    def now_ms(self) -> int:
        """The time pages are rendered for."""
        return self.settings.clock.now_ms()

    @property
    def has_spark(self) -> bool:
        """Whether a Spark query holds a group of the cluster."""
        groups = self.collector.update().groups.values()
        return any(is_spark(member) for group in groups for member in group.members or ())

    def link(self, path: str, **parameters: object) -> str:
        """Return the address of one of its pages; parameters that are None or empty are left out.

        The path may end in the ``#place`` of its page.
        """
        page, hash_, place = path.partition("#")
        kept = {name: str(value) for name, value in parameters.items() if value not in (None, "")}
        query = f"?{urlencode(kept)}" if kept else ""
        return f"{self.base}{page}{query}{hash_}{quote(place, safe='')}"


def site_of(request: Request) -> Site:
    """Return the site a request is for: the one its address names, else the first.

    Raises:
        HTTPException: there is no such cluster (404).
    """
    sites: Mapping[str, Site] = request.app.state.sites
    name = request.path_params.get("cluster")
    if name is not None and name not in sites:
        raise HTTPException(404)
    return sites[name] if name is not None else next(iter(sites.values()))


def is_spark(member: MemberRow) -> bool:
    """Return whether a member is a Spark query's claim on the group."""
    return member.client_id.endswith("#spark")


@dataclass(frozen=True, slots=True)
class Sheet(Generic[T]):
    """The rows of one page of a long table.

    Attributes:
        number: which page it is, from 1.
        pages: how many there are.
        total: rows of all pages.
    """

    rows: Sequence[T]
    number: int
    pages: int
    total: int

    @property
    def first(self) -> int:
        """The number of its first row, from 1."""
        return (self.number - 1) * limits.DASHBOARD_PAGE_ROWS + 1


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, with its user and the form it carries."""

    request: Request
    site: Site
    user: User
    form: FormData | None = None

    def value(self, name: str, default: str = "", most: int = FIELD_CHARS_MAX) -> str:
        """Return a parameter of the address, stripped.

        Raises:
            PageError: the value has more than ``most`` characters.
        """
        return _bounded(name, self.request.query_params.get(name, default), most)

    def need(self, name: str) -> str:
        """Return a parameter of the address; it must be present.

        Raises:
            PageError: the parameter is missing.
        """
        found = self.value(name)
        if not found:
            raise PageError(400, f"this address lacks {name}=…")
        return found

    def field(self, name: str, default: str = "") -> str:
        """Return a field of the form, stripped."""
        found = self.form.get(name, default) if self.form is not None else default
        return _bounded(name, found if isinstance(found, str) else default)

    def may(self, role: Role) -> bool:
        """Return whether the user may act in a role here and now."""
        if role is Role.ACT and not self.site.settings.may_write:
            return False
        return self.user.may(role)

    @property
    def jobs(self) -> Jobs:
        """The changes under way.

        Raises:
            PageError: this dashboard is read-only.
        """
        if self.site.jobs is None:
            raise PageError(403, READ_ONLY)
        return self.site.jobs

    def update(self) -> Update:
        """Return the result of the last sweep, the same throughout a request."""
        state = self.request.state
        if not hasattr(state, "update"):
            state.update = self.site.collector.update()
        found: Update = state.update
        return found

    def show(self, template: str, code: int = 200, /, **values: Any) -> Response:
        """Return a page or a part of one, with its status code."""
        found = environment().get_template(template)
        return HTMLResponse(found.render(self._common() | values), code)

    def page(self, name: str, code: int = 200, /, **values: Any) -> Response:
        """Return a page, or the part of it that an open page asks for again."""
        return self.show(f"{name}{'_live' if self.is_part else ''}.html", code, **values)

    def go(self, path: str, **parameters: str) -> Response:
        """Return the redirect that follows a change."""
        return RedirectResponse(self.site.link(path, **parameters), 303)

    def sheet(self, rows: Sequence[T]) -> Sheet[T]:
        """Return the rows of the page that the address asks for."""
        size = limits.DASHBOARD_PAGE_ROWS
        pages = max(-(-len(rows) // size), 1)
        asked = self.value("page", "1")
        at = min(max(int(asked), 1), pages) if asked.isdecimal() else 1
        return Sheet(rows[(at - 1) * size : at * size], at, pages, len(rows))

    def offer(self, plan: Any) -> str | None:
        """Keep a plan that is shown to somebody who may carry it out; returns its id."""
        if not self.may(Role.ACT):
            return None
        return self.site.plans.keep(plan, self.user.session_id)

    def accepted(self, kind: type[T]) -> T:
        """Return the plan whose form was sent, and forget it.

        Raises:
            PreviewGoneError: it is not known here, is too old, or was carried out.
            PageError: it is of another kind.
        """
        plan = self.site.plans.take(self.field("plan"), self.user.session_id)
        if not isinstance(plan, kind):
            raise PageError(400, "this preview is of another change: look again first")
        return plan

    def insists(self, problems: Sequence[str]) -> bool:
        """Return whether a change is made although something speaks against it.

        Raises:
            PageError: something does, and the form does not say that its sender has read it.
        """
        force = self.field("force") == "yes"
        if problems and not force:
            raise PageError(409, f"not done: {'; '.join(problems)}")
        return force

    @property
    def is_part(self) -> bool:
        """Whether an open page asks for only a part of itself."""
        return "hx-request" in self.request.headers

    def _common(self) -> dict[str, Any]:
        site = self.site
        path = self.request.url.path
        return {
            "ask": self,
            "site": site,
            "user": self.user,
            "settings": site.settings,
            "now_ms": site.now_ms,
            "update": self.update(),
            "cost": site.collector.cost(),
            "form_token": site.sessions.form_token(self.user.session_id),
            "may_act": self.may(Role.ACT),
            "may_export": self.may(Role.EXPORT),
            "path": path.removeprefix(site.base),
            "is_inside": path.startswith(site.base + "/"),
        }


Handler = Callable[[Ask], Awaitable[Response]]


def get(path: str, handler: Handler, role: Role = Role.LOOK) -> Route:
    """Return the route of a page; reading it changes nothing."""

    async def endpoint(request: Request) -> Response:
        ask = Ask(request, site_of(request), request.state.user)
        return await _answered(ask, handler, role)

    return Route(path, endpoint, methods=["GET"])


def post(path: str, handler: Handler, role: Role = Role.ACT) -> Route:
    """Return the route of a change: its form is of this session, its user may make it."""

    async def endpoint(request: Request) -> Response:
        site = site_of(request)
        user: User = request.state.user
        async with request.form(max_files=0, max_fields=200) as form:
            ask = Ask(request, site, user, form)
            if not site.sessions.is_form_token(user.session_id, ask.field("form_token")):
                error = PageError(
                    403, "this form is too old, or of another login: go back, reload, send it again"
                )
                return _failed(ask, error)
            return await _answered(ask, handler, role)

    return Route(path, endpoint, methods=["POST"])


async def _answered(ask: Ask, handler: Handler, role: Role) -> Response:
    try:
        if role is Role.ACT and not ask.site.settings.may_write:
            raise PageError(403, READ_ONLY)
        if not ask.may(role):
            raise PageError(403, f"your token does not have the role {role.value!r}")
        return await handler(ask)
    except (RocketMQError, OSError) as error:
        return _failed(ask, error)


def _failed(ask: Ask, error: Exception) -> Response:
    status, sentence = error_answer(error)
    template = "error_part.html" if ask.is_part else "error.html"
    answer = ask.show(template, status, status=status, sentence=sentence)
    if ask.is_part and "live" in ask.request.headers.get("hx-target", ""):
        answer.headers["HX-Reswap"] = "none"  # the former answer stays; the page says why it is old
    if status == 503:
        answer.headers["Retry-After"] = "2"
    return answer


async def tried(answer: Awaitable[T]) -> tuple[T | None, str | None, int]:
    """Return an answer, or the sentence and status that say beside a form why there is none."""
    try:
        return await answer, None, 200
    except RocketMQError as error:
        status, sentence = error_answer(error)
        return None, sentence, status


_STATUS: Final[dict[type[RocketMQError], int]] = {
    DeskBusyError: 503,
    JobsBusyError: 503,
    DeskLateError: 504,
    PreviewGoneError: 409,
    RouteNotFoundError: 404,
    ConfigurationError: 400,
}


def error_answer(error: Exception) -> tuple[int, str]:
    """Return the status and the sentence that report an error."""
    if isinstance(error, PageError):
        return error.status, error.message
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return status, str(error)
    if isinstance(error, BrokerError) and not isinstance(error, AccessDeniedError):
        who = f"{error.address} refused" if error.address else "refused"
        return 502, f"{who}: {error.remark or 'no reason given'} (code {error.code})"
    return 502, error.message if isinstance(error, RocketMQError) else str(error)


def number(name: str, text: str) -> int | None:
    """Return a number that a user typed; None for an empty text.

    Raises:
        PageError: the text is not a number.
    """
    if not text:
        return None
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise PageError(
            400, f"{name} is {words.visible(text)!r}; it takes a whole number"
        ) from None


def time_ms(name: str, text: str) -> int | None:
    """Return a time that a user typed, in this machine's zone, as ms since 1970; None if empty.

    Raises:
        PageError: the text is not a time.
    """
    if not text:
        return None
    try:
        return moment_ms(text)
    except ValueError:
        raise PageError(
            400,
            f"{name} is {words.visible(text)!r}; it takes a time such as 2024-05-01T12:00:00, or "
            "milliseconds since 1970 (13 digits)",
        ) from None


@functools.cache
def environment() -> Environment:
    """Return the templates, compiled once per process.

    Everything they print is escaped, and invisible characters in it are spelled out.
    """
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    found.filters.update(
        number=figures.number,
        rate=figures.per_second,
        span=figures.span,
        size=figures.size,
        slug=words.slug,
        clipped=words.clipped,
        moment=functools.partial(figures.moment, exact=True),
        json_value=_json_value,
        version=version_name,
        visible=words.visible,
        by_topic=words.by_topic,
        with_links=_with_links,
        fits=lambda text: " short" if len(text) <= SHORT_CHARS else "",
        actions=lambda text: [part for part in words.parts(text) if part.path is not None],
    )
    found.globals.update(link=_link, plural=plural, ago=figures.ago, Role=Role, NONE=words.NONE)
    for name in found.list_templates():
        found.get_template(name)  # compiled now, not when the first visitor waits for it
    return found


@pass_context
def _with_links(context: Context, sentence: str) -> Markup:
    """Return a sentence whose commands lead to the pages that do what they do."""
    found = Markup()
    for part in words.parts(sentence):
        text = Markup.escape(words.visible(part.text))
        if part.is_command:
            text = Markup("<code>{}</code>").format(text)
            if part.path is not None:
                href = _link(context, part.path, **dict(part.parameters))
                text = Markup('<a href="{}">{}</a>').format(href, text)
        found += text
    return found


@pass_context
def _link(context: Context, path: str, **parameters: object) -> str:
    ask: Ask = context["ask"]
    return ask.site.link(path, **parameters)


def _finalized(value: object) -> object:
    if isinstance(value, Markup):
        return value
    return words.visible(value) if isinstance(value, str) else value


def _json_value(value: Any) -> Markup:
    """Return a value as JSON for a ``data-`` attribute; the attribute's quotes are escaped."""
    return Markup.escape(json.dumps(value, separators=(",", ":")))


def _bounded(name: str, text: str, most: int = FIELD_CHARS_MAX) -> str:
    if len(text) > most:
        raise PageError(400, f"{name} has {len(text):,} characters; {most:,} are taken")
    return text.strip()


def pick(update: Update, what: Literal["group", "topic"], name: str) -> Any:
    """Return a group or a topic of the newest sweep, by name.

    Raises:
        PageError: the sweep found none of this name, or there was no sweep yet.
    """
    if update.state is None:
        why = "the first sweep is under way" if update.outage is None else update.outage.error
        raise PageError(503, f"nothing is known of {what} {words.visible(name)!r}: {why}")
    found = update.state.groups if what == "group" else update.state.topics
    if name not in found:
        raise PageError(404, f"the last sweep found no {what} {words.visible(name)!r}")
    return found[name]
