"""Hides parts of messages by the rules of a TOML file, before any face gets a message.

Law: fails closed: where a rule cannot be applied, nothing of the body is shown. Only
``Masking.from_file`` reads a file, once.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocketstream import limits
from rocketstream.admin.messages.bodies import HIDDEN, DecodedBody, hidden, parse_json, to_json
from rocketstream.errors import ConfigurationError
from rocketstream.protocol import names
from rocketstream.protocol.namespace import without_any_namespace
from rocketstream.protocol.properties import (
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_KEYS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
)

MASK_VARIABLE: Final = "ROCKETSTREAM_MASK"
"""Environment variable that names the file of rules."""
MASKED: Final = "***"
WAYS: Final = ("whole", "hash", "last")
_SOUGHT_CHARS: Final = 4
"""Values shorter than this are not looked for elsewhere in the message: they occur in anything."""
_STEP: Final = re.compile(r"(?P<name>[^.\[\]]+)(?P<each>(?:\[\*\])*)")
_TARGETS: Final = ("json", "property", "pattern")
_KNOWN: Final = frozenset({"topic", "how", "keep", *_TARGETS})
_CARRIERS: Final = frozenset(
    {
        names.SCHEDULE_TOPIC,
        names.TRANS_HALF_TOPIC,
        names.TRACE_TOPIC,
        names.UNDELIVERED_TOPIC,
        "rmq_sys_wheel_timer",
    }
)
"""Topics that hold messages of other topics; their properties name which."""
_ORIGINS: Final = (PROPERTY_DLQ_ORIGIN_TOPIC, PROPERTY_RETRY_TOPIC, PROPERTY_REAL_TOPIC)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        number: its place in the file, from 1.
        topic: the topics it is for, as a file name pattern (``orders*``).
        how: ``whole``, ``hash`` (equal values look equal) or ``last`` (``keep`` characters stay).
        json: the names on the path to a value of a JSON body; None for another kind of rule.
        property: name of a property; KEYS are the keys.
        pattern: masked wherever it matches in body and properties.
    """

    number: int
    topic: str
    how: str
    keep: int = 0
    json: tuple[str, ...] | None = None
    property: str | None = None
    pattern: re.Pattern[str] | None = None

    def __str__(self) -> str:
        target = ".".join(self.json) if self.json is not None else self.property
        return f"rule {self.number} ({target or (self.pattern and self.pattern.pattern)})"


@dataclass(frozen=True, slots=True)
class Masked:
    """The parts of one message that may be shown.

    Attributes:
        body: the body, ``hidden`` where a rule could not be applied.
        properties: the properties.
        by: the rules that changed something, as text.
    """

    body: DecodedBody
    properties: Mapping[str, str]
    by: tuple[str, ...]


class Masking:
    """Rules by topic.

    Args:
        rules: in the order they are applied.
        key: the key of the hashes, without which nobody can compute them. None takes a new one, so
            that equal values look equal within this object only.
    """

    def __init__(self, rules: Sequence[Rule] = (), key: bytes | None = None) -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self._key = key if key is not None else secrets.token_bytes(32)

    def __bool__(self) -> bool:
        return bool(self.rules)

    @classmethod
    def from_file(cls, path: str) -> Masking:
        """Return the rules of a file.

        Raises:
            ConfigurationError: the file does not exist or is not TOML, or a rule makes no sense.
                All rules are refused then, because leaving one out would show the text it hides.
        """
        import tomllib

        try:
            tree = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"masking rules {path!r} cannot be read: {error.strerror}", path=path
            ) from error
        except ValueError as error:
            raise ConfigurationError(
                f"masking rules {path!r} are not TOML: {error}", path=path
            ) from error
        return cls.from_mapping(tree, path)

    @classmethod
    def from_mapping(cls, tree: Mapping[str, Any], source: str = "masking rules") -> Masking:
        """Return the rules of a parsed file; raises as ``from_file`` does."""
        unknown = sorted(tree.keys() - {"rule", "key"})
        rules = tree.get("rule", [])
        if unknown or not isinstance(rules, list):
            said = ", ".join(unknown) or "rule"
            raise ConfigurationError(
                f"{source}: {said} is not known here; a file has [[rule]] tables and may have a key"
            )
        key = tree.get("key")
        if key is not None and not (isinstance(key, str) and key):
            raise ConfigurationError(f"{source}: key is {key!r}; it takes a text")
        if not rules:
            raise ConfigurationError(f"{source}: there is no [[rule]]: nothing would be masked")
        found = [_rule(number, each, source) for number, each in enumerate(rules, start=1)]
        return cls(found, key.encode() if key is not None else None)

    def of(self, topic: str, properties: Mapping[str, str]) -> tuple[Rule, ...]:
        """Return the rules for a message; all rules where its topic cannot be determined."""
        if not self.rules:
            return ()
        topics = [topic, *(properties[name] for name in _ORIGINS if properties.get(name))]
        topics += [without_any_namespace(each) for each in topics]
        origins = [each for each in topics if not _carries_others(each)]
        if not origins:
            return self.rules
        return tuple(
            rule for rule in self.rules if any(fnmatch.fnmatchcase(t, rule.topic) for t in topics)
        )

    def apply(self, topic: str, properties: Mapping[str, str], body: DecodedBody) -> Masked:
        """Return the part of a message that may be shown; never raises."""
        rules = self.of(topic, properties)
        if not rules:
            return Masked(body, properties, ())
        try:
            return _Application(self._key, rules).run(topic, properties, body)
        except Exception as error:  # on any error nothing is shown
            why = f"masking failed: {type(error).__name__}"
            return Masked(hidden(body.size, why), dict.fromkeys(properties, MASKED), ("all",))

    def apply_keys(self, keys: str | None) -> str | None:
        """Return keys of an unknown topic masked, such as those in a trace record."""
        if not keys or not self.rules:
            return keys
        masked = self.apply(names.TRACE_TOPIC, {PROPERTY_KEYS: keys}, DecodedBody("text", "", 0))
        return masked.properties[PROPERTY_KEYS]


def _carries_others(topic: str) -> bool:
    return topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)) or topic in _CARRIERS


# --- reading rules --------------------------------------------------------------------------------


def _rule(number: int, tree: Any, source: str) -> Rule:
    what = f"{source}: rule {number}"
    if not isinstance(tree, Mapping):
        raise ConfigurationError(f"{what} is {tree!r}; it takes a table")
    if unknown := sorted(tree.keys() - _KNOWN):
        raise ConfigurationError(
            f"{what}: {', '.join(unknown)} is not known; a rule has {', '.join(sorted(_KNOWN))}"
        )
    targets = [name for name in _TARGETS if name in tree]
    if len(targets) != 1:
        raise ConfigurationError(f"{what} takes one of json, property and pattern, not {targets}")
    topic, how = _words(tree, "topic", "*", what), _words(tree, "how", "whole", what)
    if how not in WAYS:
        raise ConfigurationError(f"{what}: how is {how!r}; accepted are {', '.join(WAYS)}")
    keep = tree.get("keep")
    if (how == "last") != (keep is not None):
        raise ConfigurationError(f"{what}: keep = N is for how = 'last', which needs it")
    if keep is not None and (type(keep) is not int or not 1 <= keep <= 64):
        raise ConfigurationError(f"{what}: keep is {keep!r}; it takes 1 to 64 characters")
    target = _words(tree, targets[0], "", what)
    if not target:
        raise ConfigurationError(f"{what}: {targets[0]} is empty")
    rule = Rule(number, topic, how, keep or 0)
    if targets[0] == "property":
        return dataclasses.replace(rule, property=target)
    if targets[0] == "json":
        return dataclasses.replace(rule, json=_path(target, what))
    try:
        return dataclasses.replace(rule, pattern=re.compile(target))
    except re.error as error:
        raise ConfigurationError(
            f"{what}: pattern {target!r} is not a regular expression: {error}"
        ) from None


def _words(tree: Mapping[str, Any], name: str, default: str, what: str) -> str:
    value = tree.get(name, default)
    if not isinstance(value, str):
        raise ConfigurationError(f"{what}: {name} is {value!r}; it takes a text")
    return value


def _path(text: str, what: str) -> tuple[str, ...]:
    """Return the names of a path; ``**`` is any depth, and ``[*]`` is ignored."""
    found: list[str] = []
    for part in text.removeprefix("$.").split("."):
        match = _STEP.fullmatch(part)
        if match is None:
            raise ConfigurationError(
                f"{what}: json is {text!r}; it takes names joined by dots, such as customer.card, "
                "items[*].price or **.card"
            )
        found.append(match["name"])
    if found[-1] == "**":
        raise ConfigurationError(f"{what}: json is {text!r}; a name must follow **")
    return tuple(found)


# --- applying them --------------------------------------------------------------------------------


class _Application:
    """The rules of one message under way."""

    def __init__(self, key: bytes, rules: Sequence[Rule]) -> None:
        self._key = key
        self._rules = rules
        self._by: dict[str, None] = {}
        self._seen: dict[str, str] = {}
        self._taken: list[str] = []

    def run(self, topic: str, properties: Mapping[str, str], body: DecodedBody) -> Masked:
        """Apply all of them."""
        shown = self._body(topic, body)
        found = dict(properties)
        for rule in self._rules:
            for name, value in found.items():
                if rule.property == name:
                    found[name] = self._value(rule, value)
                elif rule.pattern is not None:
                    found[name] = self._replaced(rule, value)[0]
        # A value masked in one place must not be readable in another.
        found = {name: self._elsewhere(value) for name, value in found.items()}
        if self._by and shown.kind != HIDDEN:
            shown = self._finished(shown)
        return Masked(shown, found, tuple(self._by))

    def _finished(self, body: DecodedBody) -> DecodedBody:
        if body.is_hex and any(each.encode().hex(" ") in body.text for each in self._seen):
            return hidden(body.size, "its bytes have what is masked elsewhere in the message")
        if body.value is None:
            return dataclasses.replace(body, text=self._elsewhere(body.text))
        value = _each_text(body.value, self._elsewhere)
        text = to_json(value)
        most = limits.SHOWN_BODY_CHARS_MAX
        return dataclasses.replace(
            body, text=text[:most], value=value, is_cut=len(text) > most, characters=len(text)
        )

    def _body(self, topic: str, body: DecodedBody) -> DecodedBody:
        if topic == names.TRACE_TOPIC and any(r.property == PROPERTY_KEYS for r in self._rules):
            return self._hidden(body, self._rules[0], "a trace message holds keys of others")
        rules = [rule for rule in self._rules if rule.property is None]
        if not rules or body.size == 0:
            return body
        if body.value is not None:
            return self._tree(rules, body)
        for rule in rules:
            if rule.json is not None:
                return self._hidden(body, rule, f"the body is {body.kind}, not JSON")
        if body.kind != "text":
            return self._hidden(body, rules[0], f"the body is {body.kind}, not text")
        if body.is_cut:
            return self._hidden(body, rules[0], "the body is too long")
        text = body.text
        for rule in rules:
            text, _ = self._replaced(rule, text)
        return dataclasses.replace(body, text=text)

    def _tree(self, rules: Sequence[Rule], body: DecodedBody) -> DecodedBody:
        # In JSON's form: bytes and times of Avro are masked as the text they would be shown as.
        value = body.value if body.kind == "json" else json.loads(to_json(body.value))
        plain = to_json(value) if body.is_cut or body.kind != "json" else body.text
        for rule in rules:
            if rule.json is not None:
                value = self._along(rule, value, rule.json)
        for rule in rules:
            if rule.pattern is None:
                continue
            gone = sum(len(rule.pattern.findall(text)) for text in self._taken)
            inside = [0]
            value = self._leaves(rule, value, inside)
            if len(rule.pattern.findall(plain)) > inside[0] + gone:
                return self._hidden(body, rule, "it matches across several values")
        return dataclasses.replace(body, value=value) if self._by else body

    def _along(self, rule: Rule, value: Any, path: tuple[str, ...]) -> Any:
        if not path:
            return self._any(rule, value)
        if value is None:
            return None
        if isinstance(value, list):
            return [self._along(rule, each, path) for each in value]
        name, rest = path[0], path[1:]
        if isinstance(value, dict):
            if name == "**":
                found = {n: self._along(rule, each, path) for n, each in value.items()}
                return self._along(rule, found, rest)
            return {
                n: self._along(rule, each, rest) if name in (n, "*") else each
                for n, each in value.items()
            }
        if name == "**" and not (
            isinstance(value, str) and isinstance(parse_json(value), dict | list)
        ):
            return value
        # The path continues but there is no object: perhaps JSON inside a text. None of it is
        # shown.
        return self._any(rule, value)

    def _any(self, rule: Rule, value: Any) -> Any:
        if value is None:
            return None
        for each in _scalars(value):
            self._take(rule, each, MASKED)
        if isinstance(value, dict | list):
            text = json.dumps(value, sort_keys=True)
            return self._value(rule, text) if rule.how == "hash" else self._take(rule, "", MASKED)
        return self._value(rule, value if isinstance(value, str) else json.dumps(value))

    def _leaves(self, rule: Rule, value: Any, count: list[int]) -> Any:
        def change(text: str) -> str:
            masked, times = self._replaced(rule, text)
            count[0] += times
            return masked

        return _each_text(value, change)

    def _replaced(self, rule: Rule, text: str) -> tuple[str, int]:
        if rule.pattern is None:
            return text, 0
        return rule.pattern.subn(lambda m: self._value(rule, m[0]) if m[0] else "", text)

    def _value(self, rule: Rule, value: str) -> str:
        """Return the replacement for a value."""
        shown = MASKED
        if rule.how == "hash":
            shown = "#" + hmac.new(self._key, value.encode(), hashlib.sha256).hexdigest()[:16]
        elif rule.how == "last" and len(value) >= 2 * rule.keep:
            shown = MASKED + value[-rule.keep :]
        return self._take(rule, value, shown)

    def _take(self, rule: Rule, value: str, shown: str) -> str:
        self._by[str(rule)] = None
        self._taken.append(value)
        if len(value) >= _SOUGHT_CHARS:
            self._seen.setdefault(value, shown)
        return shown

    def _elsewhere(self, text: str) -> str:
        for value in sorted(self._seen, key=len, reverse=True):
            text = text.replace(value, self._seen[value])
        return text

    def _hidden(self, body: DecodedBody, rule: Rule, why: str) -> DecodedBody:
        self._by[str(rule)] = None
        return hidden(body.size, f"{rule} cannot be applied: {why}")


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with its names, texts and numbers changed."""
    if isinstance(value, dict):
        return {change(name): _each_text(each, change) for name, each in value.items()}
    if isinstance(value, list):
        return [_each_text(each, change) for each in value]
    if isinstance(value, str):
        return change(value)
    if value is None or isinstance(value, bool):
        return value
    text = json.dumps(value)
    changed = change(text)
    return value if changed == text else changed


def _scalars(value: Any) -> Iterator[str]:
    """Yield the texts and numbers inside a value, including those of JSON inside a text."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _inside(each)
    elif isinstance(value, list):
        for each in value:
            yield from _inside(each)
    elif isinstance(value, str) and isinstance(tree := parse_json(value), dict | list):
        yield from _scalars(tree)


def _inside(value: Any) -> Iterator[str]:
    yield from _scalars(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(value)
