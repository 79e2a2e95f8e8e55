"""A module of a user, whose functions are cached; ``test_shipping`` pickles them."""

from __future__ import annotations

import functools


@functools.cache
def squared(number: int) -> int:
    """A cached function; Spark finds it by its name, cache and all."""
    return number * number


@functools.lru_cache(maxsize=8)
def cubed(number: int) -> int:
    """Another kind of the same."""
    return number**3
