"""Prometheus' text format, version 0.0.4.

Pure: families of samples in, text out; every name, label and value is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """The declaration of a metric.

    Attributes:
        kind: ``gauge`` or ``counter``.
        text: its help text.
        labels: the names of its labels, in the order their values are passed.
    """

    kind: str
    text: str
    labels: tuple[str, ...] = ()


class Exposition:
    """Collects samples by family and renders them."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self._samples: dict[str, dict[tuple[str, ...], int | float]] = {}

    def add(self, name: str, value: int | float | None, *labels: str) -> None:
        """Add a sample; None adds nothing. The last sample of the same labels counts.

        Raises:
            KeyError: there is no such family.
        """
        family = self._families[name]
        if value is None:
            return
        if len(labels) != len(family.labels):
            raise KeyError(f"{name} has the labels {family.labels}, not {labels}")
        self._samples.setdefault(name, {})[labels] = value

    def text(self) -> str:
        """Return all families that have samples, in the order of the table of families."""
        lines: list[str] = []
        for name, family in self._families.items():
            samples = self._samples.get(name)
            if samples:
                lines += _family_lines(name, family, samples)
        return "\n".join(lines) + "\n" if lines else ""


def _family_lines(
    name: str, family: Family, samples: Mapping[tuple[str, ...], int | float]
) -> Iterable[str]:
    yield f"# HELP {name} {_help(family.text)}"
    yield f"# TYPE {name} {family.kind}"
    names = family.labels
    for values, value in samples.items():
        if not names:
            yield f"{name} {_number(value)}"
            continue
        inside = ",".join(
            f'{label}="{_value(text)}"' for label, text in zip(names, values, strict=True)
        )
        yield f"{name}{{{inside}}} {_number(value)}"


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _value(text: str) -> str:
    if text.isascii() and text.isprintable() and "\\" not in text and '"' not in text:
        return text
    # A scraper that meets bytes that are not UTF-8 discards the whole answer.
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return (
        whole.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\\\r")
    )


def _number(value: int | float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
