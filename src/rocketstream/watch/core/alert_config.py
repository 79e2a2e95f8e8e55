"""The file that says which webhook gets notices of which changes.

Pure: a parsed TOML document and an environment in, settings out.

Law: an error names the place of the mistake, never a secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rocketstream.admin.state import Verdict
from rocketstream.errors import ConfigurationError
from rocketstream.watch.core.alerting import BAD, HOLD_MS, Rule
from rocketstream.watch.core.formats import Kind

_TOP: Final = ("cluster", "remember", "outages", "outage_hold_s", "webhook", "rule")
_WEBHOOK: Final = (
    "name",
    "kind",
    "url",
    "url_env",
    "secret",
    "secret_env",
    "headers",
    "headers_env",
)
_RULE: Final = (
    "groups", "except", "verdicts", "webhooks", "hold_s", "repeat_s", "recovered",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of notices; ``repr`` hides address and secret, because they give access."""

    name: str
    kind: Kind
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class AlertConfig:
    """The settings in a file.

    Attributes:
        cluster: the cluster's name in notices; None takes the addresses of its name servers.
        remember: the file that keeps sent notices over a restart; empty keeps none, None leaves the
            place to the reader of these settings.
        webhooks: the webhooks by name.
        rules: the rules in the file's order.
        outage_webhooks: the webhooks that are told when no broker answers.
        outage_hold_ms: how long an outage must last before they are told.
    """

    webhooks: Mapping[str, Webhook]
    rules: tuple[Rule, ...]
    cluster: str | None = None
    remember: str | None = None
    outage_webhooks: tuple[str, ...] = ()
    outage_hold_ms: int = HOLD_MS


def read_config(document: Mapping[str, Any], environment: Mapping[str, str]) -> AlertConfig:
    """Return the settings of a document.

    Raises:
        ConfigurationError: a setting is not accepted; the error says which, where, and what would
            be accepted.
    """
    _only(document, _TOP, "the file")
    tables = _tables(document, "webhook")
    if not tables:
        raise ConfigurationError("alerts: the file names no [[webhook]]; nobody could be told")
    webhooks: dict[str, Webhook] = {}
    for number, table in enumerate(tables, 1):
        webhook = _webhook(table, f"webhook {number}", environment)
        if webhook.name in webhooks:
            raise ConfigurationError(f"alerts: two webhooks are called {webhook.name!r}")
        webhooks[webhook.name] = webhook
    everyone = tuple(webhooks)
    rules = [
        _rule(table, f"rule {number}", everyone)
        for number, table in enumerate(_tables(document, "rule"), 1)
    ] or [Rule(everyone)]
    outages = document.get("outages", True)
    told = everyone if outages is True else () if outages is False else _names(outages, everyone)
    return AlertConfig(
        webhooks,
        tuple(rules),
        _text(document, "cluster", "the file"),
        _text(document, "remember", "the file"),
        told,
        _milliseconds(document, "outage_hold_s", "the file", HOLD_MS),
    )


def _webhook(table: Mapping[str, Any], place: str, environment: Mapping[str, str]) -> Webhook:
    _only(table, _WEBHOOK, place)
    name = _text(table, "name", place) or ""
    kind = _text(table, "kind", place) or Kind.GENERIC
    if kind not in list(Kind):
        raise ConfigurationError(
            f"alerts: kind of {place} is {kind!r}; accepted are {', '.join(Kind)}"
        )
    url = _secret(table, "url", place, environment)
    if not name or url is None:
        raise ConfigurationError(f"alerts: {place} needs a name, and url or url_env")
    if not url.startswith(("https://", "http://")) or any(c <= " " or c > "~" for c in url):
        # Not shown in the error: the address gives access to the chat.
        raise ConfigurationError(f"alerts: url of {place} is not an http:// or https:// address")
    headers = dict(_mapping(table, "headers", place))
    for header, variable in _mapping(table, "headers_env", place).items():
        headers[header] = _from_environment(variable, f"headers_env of {place}", environment)
    if any(c < " " or c > "~" for each in headers.items() for part in each for c in part):
        raise ConfigurationError(f"alerts: headers of {place} have a character that is not ASCII")
    return Webhook(name, Kind(kind), url, _secret(table, "secret", place, environment), headers)


def _rule(table: Mapping[str, Any], place: str, everyone: tuple[str, ...]) -> Rule:
    _only(table, _RULE, place)
    verdicts = _texts(table, "verdicts", place, tuple(verdict.value for verdict in BAD))
    accepted = {verdict.value for verdict in Verdict if verdict is not Verdict.OK}
    for verdict in verdicts:
        if verdict not in accepted:
            raise ConfigurationError(
                f"alerts: verdicts of {place} has {verdict!r}; accepted are "
                + ", ".join(sorted(accepted))
            )
    recovered = table.get("recovered", True)
    if not isinstance(recovered, bool):
        raise ConfigurationError(
            f"alerts: recovered of {place} is {recovered!r}; give true or false"
        )
    webhooks = table.get("webhooks")
    return Rule(
        everyone if webhooks is None else _names(webhooks, everyone),
        _texts(table, "groups", place, ("*",)),
        _texts(table, "except", place, ()),
        tuple(Verdict(verdict) for verdict in verdicts),
        _milliseconds(table, "hold_s", place, HOLD_MS),
        _milliseconds(table, "repeat_s", place, 0),
        recovered,
    )


def _only(table: Mapping[str, Any], accepted: Sequence[str], place: str) -> None:
    for name in table:
        if name not in accepted:
            raise ConfigurationError(
                f"alerts: {place} has {name!r}; accepted are {', '.join(accepted)}"
            )


def _tables(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise ConfigurationError(f"alerts: write each {name} as a table [[{name}]]")
    return found


def _text(table: Mapping[str, Any], name: str, place: str) -> str | None:
    value = table.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"alerts: {name} of {place} must be a text in quotes")
    return value


def _texts(
    table: Mapping[str, Any], name: str, place: str, default: tuple[str, ...]
) -> tuple[str, ...]:
    value = table.get(name)
    if value is None:
        return default
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ConfigurationError(f'alerts: {name} of {place} must be a list like ["billing-*"]')
    return tuple(value)


def _mapping(table: Mapping[str, Any], name: str, place: str) -> Mapping[str, str]:
    value = table.get(name, {})
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise ConfigurationError(f"alerts: {name} of {place} must be a table of texts")
    return value


def _names(value: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or any(name not in known for name in value):
        raise ConfigurationError(
            f"alerts: webhooks {value!r} are not all in the file, which has {', '.join(known)}"
        )
    return tuple(value)


def _milliseconds(table: Mapping[str, Any], name: str, place: str, default: int) -> int:
    value = table.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ConfigurationError(f"alerts: {name} of {place} is {value!r}; give seconds, 0 or more")
    return round(value * 1000)


def _secret(
    table: Mapping[str, Any], name: str, place: str, environment: Mapping[str, str]
) -> str | None:
    """Return a value that is in the file itself, or in a variable the file names."""
    value, variable = _text(table, name, place), _text(table, f"{name}_env", place)
    if value is not None and variable is not None:
        raise ConfigurationError(f"alerts: {place} has both {name} and {name}_env; give one")
    if variable is None:
        return value
    return _from_environment(variable, f"{name}_env of {place}", environment)


def _from_environment(variable: str, what: str, environment: Mapping[str, str]) -> str:
    if not environment.get(variable):
        raise ConfigurationError(f"alerts: {what} names the variable {variable}, which is not set")
    return environment[variable]
