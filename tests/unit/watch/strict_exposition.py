"""A strict reader of Prometheus' text format: whatever the format does not allow is an error."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_VALUE = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|NaN|[+-]Inf")
_ESCAPED = {"\\": "\\", '"': '"', "n": "\n"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class ReadFamily:
    """One metric family as it was read."""

    kind: str
    text: str
    samples: dict[Labels, float] = field(default_factory=dict)


def read(text: str) -> dict[str, ReadFamily]:
    """Return the families of an exposition.

    Raises:
        ValueError: what the format does not allow, and where.
    """
    if text and not text.endswith("\n"):
        raise ValueError("the last line does not end")
    families: dict[str, ReadFamily] = {}
    helps: dict[str, str] = {}
    current = ""
    for number, line in enumerate(text.split("\n")[:-1], 1):
        if line.startswith("# HELP "):
            name, _, said = line[7:].partition(" ")
            if name in helps or not said:
                raise ValueError(f"line {number}: a second or an empty help of {name}")
            helps[name] = said
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if not _NAME.fullmatch(name) or kind not in ("gauge", "counter"):
                raise ValueError(f"line {number}: {line!r}")
            if name in families or name not in helps:
                raise ValueError(f"line {number}: {name} twice, or without help")
            if (kind == "counter") != name.endswith("_total") and name.startswith("rocketstream"):
                raise ValueError(f"line {number}: {name} is named as what it is not")
            current = name
            families[name] = ReadFamily(kind, helps[name])
        else:
            name, labels, value = _sample(line, number)
            if name != current:
                raise ValueError(f"line {number}: {name} outside its family")
            if labels in families[name].samples:
                raise ValueError(f"line {number}: {name}{labels} twice")
            families[name].samples[labels] = value
    return families


def _sample(line: str, number: int) -> tuple[str, Labels, float]:
    found = _NAME.match(line)
    if found is None:
        raise ValueError(f"line {number}: {line!r}")
    at = found.end()
    labels: list[tuple[str, str]] = []
    if line[at : at + 1] == "{":
        at, labels = _labels(line, at + 1, number)
    if line[at : at + 1] != " " or not _VALUE.fullmatch(line[at + 1 :]):
        raise ValueError(f"line {number}: no value in {line!r}")
    value = float(line[at + 1 :].replace("Inf", "inf"))
    if math.isnan(value):
        raise ValueError(f"line {number}: not a number")
    names = [name for name, _ in labels]
    if len(set(names)) != len(names):
        raise ValueError(f"line {number}: a label twice")
    return found[0], tuple(labels), value


def _labels(line: str, at: int, number: int) -> tuple[int, list[tuple[str, str]]]:
    labels: list[tuple[str, str]] = []
    while line[at : at + 1] != "}":
        found = _LABEL.match(line, at)
        if found is None or line[found.end() : found.end() + 2] != '="':
            raise ValueError(f"line {number}: no label at {line[at:]!r}")
        at, value = _quoted(line, found.end() + 2, number)
        labels.append((found[0], value))
        if line[at : at + 1] == ",":
            at += 1
        elif line[at : at + 1] != "}":
            raise ValueError(f"line {number}: {line[at:]!r}")
    return at + 1, labels


def _quoted(line: str, at: int, number: int) -> tuple[int, str]:
    value: list[str] = []
    while line[at : at + 1] != '"':
        char = line[at : at + 1]
        if not char:
            raise ValueError(f"line {number}: a value does not end")
        if char == "\\":
            at += 1
            if line[at : at + 1] not in _ESCAPED:
                raise ValueError(f"line {number}: \\{line[at : at + 1]} is no escape")
            char = _ESCAPED[line[at]]
        value.append(char)
        at += 1
    return at + 1, "".join(value)
