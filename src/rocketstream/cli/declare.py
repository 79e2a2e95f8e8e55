"""Commands as typed functions: the annotations of a function's parameters become click's options.

Click's objects are made when a command is called for.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

import click
from click import BadParameter, Context
from click.exceptions import Exit

__all__ = ["Argument", "BadParameter", "Commands", "Context", "Exit", "Option"]

_ABSENT: Final = inspect.Parameter.empty


class Option:
    """An option, in ``Annotated[type, Option(...)]`` of a parameter; the parameter has its default.

    Args:
        names: ``--name``, ``-n``, ``--on/--off``; without any the parameter's name makes it.
        help: the text of ``--help``.
        metavar: what stands for its value.
        min: the least number accepted.
        max: the greatest number accepted.
        envvar: the environment variable it is taken from where it is not given.
        parser: makes the value of the text; raises ValueError or ``BadParameter``.
        callback: gets the value, and returns the one to use.
        is_eager: looked at before other options.
        exists: a path must be there.
        file_okay: a path may be a file.
        dir_okay: a path may be a directory.
    """

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        min: float | None = None,
        max: float | None = None,
        envvar: str | None = None,
        parser: Callable[[str], Any] | None = None,
        callback: Callable[[Any], Any] | None = None,
        is_eager: bool = False,
        exists: bool = False,
        file_okay: bool = True,
        dir_okay: bool = True,
    ) -> None:
        self.names = names
        self.help = help
        self.metavar = metavar
        self.min, self.max = min, max
        self.envvar = envvar
        self.parser = parser
        self.callback = callback
        self.is_eager = is_eager
        self.exists, self.file_okay, self.dir_okay = exists, file_okay, dir_okay

    def made(self, name: str, hint: Any, default: Any) -> click.Option:
        """Return click's option for a parameter of this name, type and default."""
        kind, several = _kind(hint)
        names = self.names or (_spelled(name, kind),)
        shown = self.callback
        return click.Option(
            [name, *names],
            type=None if kind is bool else _type(kind, self),
            is_flag=True if kind is bool else None,
            multiple=several,
            **_default(default),
            required=default is _ABSENT,
            show_default=default not in (_ABSENT, False, "") and default != [],
            help=self.help,
            metavar=self.metavar or ("N" if kind is int else None),
            envvar=self.envvar,
            show_envvar=True,
            is_eager=self.is_eager,
            callback=None if shown is None else lambda context, parameter, value: shown(value),
        )


class Argument:
    """An argument, in ``Annotated[type, Argument(...)]``; required without a default.

    Args:
        metavar: what stands for it.
        help: the text of ``--help``.
    """

    def __init__(self, *, metavar: str, help: str) -> None:
        self.metavar = metavar
        self.help = help

    def made(self, name: str, hint: Any, default: Any) -> click.Argument:
        """Return click's argument for a parameter of this name, type and default."""
        kind, several = _kind(hint)
        may_lack = default is not _ABSENT and not self.metavar.startswith("[")
        return click.Argument(
            [name],
            type=_type(kind, None),
            nargs=-1 if several else 1,
            **_default(default),
            required=default is _ABSENT,
            metavar=f"[{self.metavar}]" if may_lack else self.metavar,
            help=self.help,
        )


class Commands(click.Group):
    """Commands under one name; each is made when it is asked for, and its module imported then.

    Args:
        name: the word before their names.
        help: the text of ``--help``.
        callback: runs before a command, with options of its own.
        epilog: stands below the help.
        invoke_without_command: the callback alone is a command.
        settings: click's, for this group and its commands.
    """

    def __init__(
        self,
        name: str,
        help: str,
        *,
        callback: Callable[..., Any] | None = None,
        epilog: str | None = None,
        invoke_without_command: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            name,
            help=help,
            epilog=epilog,
            callback=None if callback is None else _called(callback),
            params=[] if callback is None else _parameters(callback),
            invoke_without_command=invoke_without_command,
            no_args_is_help=not invoke_without_command,
            context_settings=dict(settings or {}),
        )
        self._places: dict[str, str | Callable[[], click.Command]] = {}
        self.view: Callable[[click.Command], None] | None = None
        """Called with each command below when it is made: adds what many have in common."""

    def add(
        self, function: Callable[..., Any], name: str | None = None, *, epilog: str | None = None
    ) -> None:
        """Add a function as a command; its name is the function's unless given."""
        called = name or function.__name__.replace("_", "-")
        self._places[called] = lambda: click.Command(
            called,
            help=inspect.cleandoc(function.__doc__ or ""),
            epilog=epilog,
            callback=_called(function),
            params=_parameters(function),
        )

    def add_later(self, modules: Mapping[str, str]) -> None:
        """Add commands by name, each with the module of ``cli`` whose ``add_to`` adds it."""
        self._places.update(modules)

    def list_commands(self, ctx: Context | None) -> list[str]:
        """Return the names of the commands, in the order they were added."""
        return list(dict.fromkeys([*self._places, *self.commands]))

    def get_command(self, ctx: Context | None, cmd_name: str) -> click.Command | None:
        """Return a command; it is made now if it was not."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        place = self._places.get(cmd_name)
        if isinstance(place, str):
            importlib.import_module(f"rocketstream.cli.{place}").add_to(self)
            place = self._places[cmd_name]
        if callable(place):
            self.add_command(place(), cmd_name)
        command = self.commands.get(cmd_name)
        if isinstance(command, Commands):
            command.view = self.view
        elif command is not None and self.view is not None:
            self.view(command)
        return command

    def format_commands(self, ctx: Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the whole first sentence of each, folded and not cut."""
        rows = [
            (name, " ".join((command.help or "").partition("\n\n")[0].split()))
            for name, command in self.made().items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def made(self) -> dict[str, click.Command]:
        """Return every command by its name, made now where it was not."""
        found = {name: self.get_command(None, name) for name in self.list_commands(None)}
        return {name: command for name, command in found.items() if command is not None}


def _parameters(function: Callable[..., Any]) -> list[click.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    made: list[click.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint, *notes = _unwrapped(hints[name])
        declared = next((note for note in notes if isinstance(note, Option | Argument)), None)
        if declared is not None:
            made.append(declared.made(name, hint, parameter.default))
        elif hint is not Context:
            raise TypeError(f"{function.__name__}: {name} is neither an option nor an argument")
    return made


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as click calls it: values are converted to its annotations."""

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        hints = get_type_hints(function)
        for name, parameter in inspect.signature(function).parameters.items():
            if hints[name] is Context:
                given[name] = click.get_current_context()
                continue
            kind, several = _kind(hints[name])
            if several:
                given[name] = list(given[name]) if given[name] else parameter.default
            elif given[name] is not None and _is_choice(kind):
                given[name] = kind(given[name])
        return function(**given)

    return call


def _unwrapped(hint: Any) -> tuple[Any, ...]:
    """Return the type of an ``Annotated`` and its annotation."""
    return get_args(hint) if hasattr(hint, "__metadata__") else (hint,)


def _kind(hint: Any) -> tuple[Any, bool]:
    """Return the type of one value, None taken off, and whether there may be several."""
    given = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) is not list and len(given) == 1:
        hint = given[0]
    return (get_args(hint)[0], True) if get_origin(hint) is list else (hint, False)


def _is_choice(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _default(default: Any) -> dict[str, Any]:
    """Return click's ``default`` as a keyword, or no keyword for a parameter without a default."""
    if default is _ABSENT:
        return {}
    return {"default": default.value if isinstance(default, enum.Enum) else default}


def _spelled(name: str, kind: Any) -> str:
    word = name.strip("_").replace("_", "-")
    return f"--{word}/--no-{word}" if kind is bool else f"--{word}"


def _type(kind: Any, option: Option | None) -> click.ParamType[Any]:
    if option is not None and option.parser is not None:
        return _Parsed(option.parser)
    if kind is Path:
        return click.Path(
            exists=option is not None and option.exists,
            file_okay=option is None or option.file_okay,
            dir_okay=option is None or option.dir_okay,
            path_type=Path,
        )
    if _is_choice(kind):
        return click.Choice([each.value for each in kind])
    least, greatest = (None, None) if option is None else (option.min, option.max)
    if kind is int:
        unbound = least is None and greatest is None
        return click.INT if unbound else click.IntRange(_whole(least), _whole(greatest))
    if kind is float:
        return click.FLOAT if least is greatest is None else click.FloatRange(least, greatest)
    return click.STRING


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


class _Parsed(click.ParamType[Any]):
    """Values of a function that reads text."""

    name = "text"

    def __init__(self, parser: Callable[[str], Any]) -> None:
        self._parser = parser

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        """Return the function's value of the text; a default is already such a value."""
        if not isinstance(value, str):
            return value
        try:
            return self._parser(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
