"""A subscription as a user gives it, and what to tell of one that is probably not meant.

Law: no I/O but a line in the caller's log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageSelector
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.subscription import build_subscription, comma_hint

Subscription = Mapping[str, str | MessageSelector | None]
"""Topics, and which messages of each."""


def subscribed(given: Subscription | None) -> Iterable[tuple[str, str | MessageSelector | None]]:
    """Return the topics of a consumer's keyword ``subscription``, with their expressions.

    Raises:
        ConfigurationError: not a mapping, such as the name of a topic alone.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            "subscription must be a mapping of topics to expressions, such as {'orders': '*'}, "
            f"not {given!r}"
        )
    return given.items()


def subscription_of(
    topic: str, name: str, selector: MessageSelector, now_ms: int, logger: logging.Logger
) -> SubscriptionData:
    """Return a subscription, with a warning where tags were joined by commas.

    Args:
        topic: as the user calls it.
        name: as brokers call it, with its namespace.
        selector: which messages.
        now_ms: its version, ms since 1970.
        logger: of the consumer.

    Raises:
        SubscriptionError: an expression that cannot be used.
    """
    made = build_subscription(name, selector.expression, now_ms, selector.expression_type)
    if (hint := comma_hint(made)) is not None:
        logger.warning("subscription of topic %s: %s", topic, hint)
    return made
