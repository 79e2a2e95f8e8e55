"""Doing work in steps to its end.

Law: counts the steps; nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def drained(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Return the outcome of work in steps, and how many they were."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, count
        count += 1
