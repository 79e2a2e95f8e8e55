"""Groups of commands whose modules are imported when they run, and what many commands share.

Options, types of values and completion that several commands have are spelled here once.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click import BadParameter
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream._util.when import SPANS, TIMES, moment_ms, span_ms
from rocketstream.client.credentials import KEY_FILE_VARIABLE, read_credentials
from rocketstream.errors import ConfigurationError

if TYPE_CHECKING:
    from rocketstream.admin.admin import Admin

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
COMPLETION_TIMEOUT_MS: Final = 800
"""A cluster that takes longer is not waited for: no names are better than a shell that hangs."""
COMPLETIONS_MAX: Final = 2_000
Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]


class Commands(click.Group):
    """Commands under one name.

    Args:
        later: by name the commands that are made when they are called for: the module of ``cli``
            and the name of the command in it.
    """

    def __init__(self, *args: Any, later: Mapping[str, str] | None = None, **settings: Any) -> None:
        settings.setdefault("no_args_is_help", not settings.get("invoke_without_command"))
        super().__init__(*args, **settings)
        self._later = later or {}

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        """Return the names of the commands, those of other modules last."""
        return [*(name for name in self.commands if name not in self._later), *self._later]

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        """Return a command; its module is imported now if it was not."""
        if cmd_name not in self.commands and cmd_name in self._later:
            module, _, name = self._later[cmd_name].partition(":")
            found = importlib.import_module(f"rocketstream.cli.{module}")
            self.add_command(getattr(found, name), cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant; names that are like an unknown one are said."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            names = self.list_commands(ctx)
            raise click.NoSuchCommand(error.command_name, possibilities=names, ctx=ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin so."""
        fitting = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self._summary(name)) for name in fitting]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the whole first sentence of each, folded and not cut."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(name)) for name in self.list_commands(ctx)])

    def _summary(self, name: str) -> str:
        """Return the first sentence of a command's help."""
        command = self.get_command(None, name)
        return " ".join(((command and command.help) or "").partition("\n\n")[0].split())

    def made(self) -> dict[str, click.Command]:
        """Return every command by its name, made now where it was not."""
        found = {name: self.get_command(None, name) for name in self.list_commands(None)}
        return {name: command for name, command in found.items() if command is not None}


# --- values ---------------------------------------------------------------------------------------


def _bounds(least: float | None, greatest: float | None) -> str:
    if least is not None and greatest is not None:
        return f" from {least:g} to {greatest:g}"
    return "" if least is None else f" of at least {least:g}"


class Whole(click.IntRange):
    """Whole numbers within bounds."""

    def __init__(self, min: int, max: int | None = None) -> None:
        super().__init__(min, max)

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return the number; a refusal says what is accepted."""
        try:
            return int(super().convert(value, param, ctx))
        except BadParameter:
            accepted = f"a whole number{_bounds(self.min, self.max)}"
            self.fail(f"{value!r} is given; accepted is {accepted}", param, ctx)


class Seconds(click.FloatRange):
    """Numbers, of seconds mostly, that are not too small."""

    def __init__(self, min: float) -> None:
        super().__init__(min)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the number; a refusal says what is accepted."""
        try:
            return float(super().convert(value, param, ctx))
        except BadParameter:
            accepted = f"a number{_bounds(self.min, None)}"
            self.fail(f"{value!r} is given; accepted is {accepted}", param, ctx)


class _Text(click.ParamType[Any]):
    """Texts that a function reads."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the function's value of the text; a default is already such a value."""
        return self._read(value) if isinstance(value, str) else value


def _span(text: str) -> int:
    found = span_ms(text)
    if found is None:
        raise BadParameter(f"{text!r} is not a span of time; give one like {SPANS}")
    return found


def _time(text: str) -> int:
    try:
        return moment_ms(text, SYSTEM_CLOCK.now_ms())
    except ValueError as error:
        raise BadParameter(f"{text!r} is given; it takes {TIMES} ({error})") from None


SPAN: Final = _Text("span", _span)
"""Spans of time, in ms."""
TIME: Final = _Text("time", _time)
"""Moments, in ms since 1970; a span is so long ago."""
FILE: Final = click.Path(dir_okay=False, path_type=Path)
THERE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)
PORT: Final = Whole(0, 65_535)


def pairs(option: str, texts: Sequence[str], form: str = "NAME=VALUE") -> dict[str, str]:
    """Return ``NAME=VALUE`` texts as a table.

    Raises:
        BadParameter: one without a name or without ``=``.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            raise BadParameter(f"{option} is {text!r}; accepted is {form}")
        found[name.strip()] = value
    return found


@dataclass(frozen=True, slots=True)
class StartPosition:
    """``earliest``, ``latest``, or a moment (then ``timestamp_ms`` is set)."""

    name: str
    timestamp_ms: int | None = None


def parse_start(text: str, option: str = "--from") -> StartPosition:
    """Return the start position a ``--from`` value stands for.

    Accepted: ``earliest``, ``latest``, milliseconds since 1970 (13 digits), upstream's
    ``yyyyMMddHHmmss`` in local time, and ISO 8601 (local time when it names no zone).

    Raises:
        ConfigurationError: anything else; the text names ``option``.
    """
    word = text.strip()
    if word in ("earliest", "latest"):
        return StartPosition(word)
    try:
        return StartPosition("timestamp", moment_ms(word))
    except ValueError:
        raise ConfigurationError(
            f"{option} is {text!r}; accepted are earliest, latest, a time like "
            "2024-05-01T12:00:00 or 2024-05-01T12:00:00Z, or milliseconds since 1970 (13 digits)",
            value=text,
        ) from None


def upstream_timestamp(timestamp_ms: int) -> str:
    """Return the moment as ``yyyyMMddHHmmss`` in local time, the form consumers take (C-33)."""
    return datetime.datetime.fromtimestamp(timestamp_ms / 1000).strftime("%Y%m%d%H%M%S")


# --- completion -----------------------------------------------------------------------------------


def names(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the completion of a name the cluster knows: ``topics``, ``groups`` or ``brokers``.

    On any error a shell gets no names and no noise.
    """

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
        from rocketstream.errors import RocketMQError

        namesrv = os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
        for each in (context.find_root(), context):
            if each.get_parameter_source("namesrv") is ParameterSource.COMMANDLINE:
                namesrv = each.params["namesrv"]
        try:
            found = _known(kind, namesrv)
        except (RocketMQError, OSError):
            return []
        # Retry, dead letter and system names are many and rarely meant.
        fitting = {w for w in found if w.startswith(begun) and (begun or not w.startswith("%"))}
        return sorted(fitting)[:COMPLETIONS_MAX]

    return complete


def _known(kind: str, namesrv: str) -> list[str]:
    timeout_ms = COMPLETION_TIMEOUT_MS
    with looking(namesrv, timeout_ms=timeout_ms, connect_timeout_ms=timeout_ms) as admin:
        if kind == "topics":
            return admin.topics.names()
        if kind == "groups":
            return admin.groups.names()
        return [row.broker_name for row in admin.brokers.all()]


def words(*some: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the completion of words that a value may begin with."""
    return lambda context, parameter, begun: [word for word in some if word.startswith(begun)]


def looking(namesrv: str, mask: str | None = None, **settings: Any) -> Admin:
    """Return the operations on a cluster, for commands that only look: none writes an audit file.

    Args:
        namesrv: name servers to ask.
        mask: ``--mask`` of commands that show messages; None takes ROCKETSTREAM_MASK.
        settings: further ones of the ``Admin``.
    """
    from rocketstream.admin.admin import Admin

    if mask:
        from rocketstream.admin.messages.masking import Masking  # most commands show no message

        settings["masking"] = Masking.from_file(mask)
    return Admin(namesrv, read_only=True, **settings)


# --- shared options -------------------------------------------------------------------------------


def option(
    said: str, help: str | None = None, type: Any = None, *, to: str | None = None, **more: Any
) -> Decorator[Any]:
    """Return an option that is declared as help shows it: ``--max, -m N``.

    Args:
        said: its names, and the word for its value; without one it is a flag.
        type: the type of its value; ``click.Choice`` alone takes the words of ``said``.
        to: the parameter that gets the value; None for the option's own name.
    """
    words = said.replace(", ", " ").split(" ")
    opts = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(opts) :])
    if type is click.Choice:
        type = click.Choice(metavar.strip("[]").split("|"))
    if metavar:
        more |= {"metavar": metavar, "type": type}
    elif "/" not in said:
        more["is_flag"] = True
    return click.option(*opts, *([to] if to else []), help=help, **more)


def argument(
    said: str, help: str, type: Any = None, *, to: str | None = None, **more: Any
) -> Decorator[Any]:
    """Return an argument that is declared as help shows it: ``TOPIC``, ``[GROUP]``, ``NAME...``."""
    if type is click.Choice:
        type = click.Choice(said.split("|"))
    more |= {"required": not said.startswith("["), "nargs": -1 if said.endswith("...") else 1}
    name = to or said.strip("[].").lower()
    return click.argument(name, metavar=said, help=help, type=type, **more)


def together(*options: Callable[[Any], Any]) -> Decorator[Any]:
    """Return one decorator of several, as if they stood below each other."""

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def use_key_file(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Let clients find the file, which is read now: not at the first look of a long command."""
    if path:
        read_credentials(path)
        os.environ[KEY_FILE_VARIABLE] = path


key_file: Final = option(
    "--key-file PATH", type=click.Path(), hidden=True, expose_value=False, callback=use_key_file
)
asks: Final = together(
    option(
        "--namesrv, -n HOST:PORT",
        "Name server to ask; several separated by ';'.",
        envvar="NAMESRV_ADDR",
        show_envvar=True,
        default=DEFAULT_NAMESRV,
    ),
    key_file,
)
"""The options of a command that asks a cluster."""
topic: Final = argument("TOPIC", "Name of the topic.", shell_complete=names("topics"))
group: Final = argument("GROUP", "The consumer group.", shell_complete=names("groups"))
start: Final = functools.partial(
    option,
    "--from earliest|latest|TIMESTAMP",
    "Where to begin when there is no progress yet. TIMESTAMP: 2024-05-01T12:00:00, "
    "with or without zone (local time without), or milliseconds since 1970.",
    to="start",
    shell_complete=words("earliest", "latest"),
)
audit_file: Final = option(
    "--audit-file FILE",
    "Where the change is written down, in JSON lines; without it "
    "`$XDG_STATE_HOME/rocketstream/audit.jsonl`.",
    click.Path(),
    envvar="ROCKETSTREAM_AUDIT_FILE",
    show_envvar=True,
)
interval: Final = functools.partial(
    option,
    "--interval SECONDS",
    "From one sweep over the cluster to the next; a slow sweep stretches it.",
    Seconds(min=1),
)


def _printed(help: str) -> Decorator[Any]:
    return together(
        option("--json", help, to="as_json"),
        option("--wide", "Show every column, however narrow the terminal."),
    )


_AS_JSON: Final = "Print data as JSON instead of a table."
printed: Final = _printed(_AS_JSON)
"""``--json`` and ``--wide``."""


def shows(*, asking: bool = True, watch: bool = False, help: str = _AS_JSON) -> Decorator[Any]:
    """Return the options of a command that shows something: ``--json``, ``--wide``, ``--watch``.

    Args:
        asking: it asks a cluster: ``--namesrv`` too.
        watch: it shows a state that changes, and changes nothing itself.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def view(*args: Any, wide: bool, watch: float | None = None, **given: Any) -> None:
            from rocketstream.cli import output

            output.look.wide = wide
            if watch is None:
                function(*args, **given)
            else:
                output.repeat(functools.partial(function, *args, **given), watch)

        return together(
            *([asks] if asking else []),
            _printed(help),
            *([_WATCH] if watch else []),
        )(view)

    return decorate


JSON_LINES: Final = "Print one JSON object per message instead of text."
WATCH_DEFAULT_S: Final = 2
_WATCH: Final = option(
    "--watch [SECONDS]",
    f"Show it again every {WATCH_DEFAULT_S} (or so many) seconds until Ctrl-C.",
    Seconds(min=0.5),
    shell_complete=lambda context, parameter, begun: [
        word for each in context.command.params[:1] for word in each.shell_complete(context, begun)
    ],
)


class Watched(click.Command):
    """A command with ``--watch``, whose seconds may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        return super().parse_args(ctx, with_seconds(args))


def with_seconds(args: Sequence[str]) -> list[str]:
    """Return the arguments with ``--watch`` given its default where no number follows it."""
    found: list[str] = []
    for index, word in enumerate(args):
        if word == "--":
            return [*found, *args[index:]]
        after = args[index + 1 : index + 2]
        if word == "--watch" and not (after and after[0].replace(".", "", 1).isdigit()):
            word = f"--watch={WATCH_DEFAULT_S}"
        found.append(word)
    return found
