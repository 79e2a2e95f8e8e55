"""What a lite pull consumer was told to consume: topics by subscription, or queues by assignment.

Law: pure; decides which of the two it is, and refuses the other (C-504, C-505).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.subscription import build_subscription

EXCLUSIVE = "Subscribe and assign are mutually exclusive."

Subscribed = tuple[dict[str, SubscriptionData], dict[str, Any]]


class LitePlan:
    """Subscriptions or assignments; the first call decides. Values are replaced, never changed.

    Attributes:
        subscriptions: what is subscribed, by topic.
        listeners: who is told of changes of a topic's queues.
        assigned: assigned queues; None unless in assign mode.
        expressions: what is wanted of the topics of assigned queues; ``*`` where nothing is said.
    """

    def __init__(self) -> None:
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.listeners: dict[str, Any] = {}
        self.assigned: frozenset[MessageQueue] | None = None
        self.expressions: dict[str, SubscriptionData] = {}
        self._subscribes = False

    def check_subscribe(self) -> None:
        """Check that topics may be subscribed.

        Raises:
            ClientStateError: queues are assigned.
        """
        if self.assigned is not None or self.expressions:
            raise ClientStateError(f"subscribe exception: {EXCLUSIVE}")

    def check_assign(self) -> None:
        """Check that queues may be assigned.

        Raises:
            ClientStateError: topics are subscribed.
        """
        if self._subscribes:
            raise ClientStateError(EXCLUSIVE)

    def subscribe(self, subscription: SubscriptionData, listener: Any) -> None:
        """Add or replace a subscription, and the listener of its topic."""
        self.check_subscribe()
        self._subscribes = True
        topic = subscription.topic
        self.subscriptions = {**self.subscriptions, topic: subscription}
        self.listeners = {**self.listeners, topic: listener}

    def go_back(self, before: Subscribed) -> None:
        """Subscribe what was subscribed when ``subscribed`` was asked."""
        self.subscriptions, self.listeners = before

    def subscribed(self) -> Subscribed:
        """Return what is subscribed, and who is told of changes."""
        return self.subscriptions, self.listeners

    def unsubscribe(self, topic: str) -> bool:
        """Remove a subscription; return whether there was one."""
        was = topic in self.subscriptions
        self.subscriptions = {t: s for t, s in self.subscriptions.items() if t != topic}
        self.listeners = {t: each for t, each in self.listeners.items() if t != topic}
        return was

    def assign(self, mqs: Collection[MessageQueue]) -> None:
        """Replace the assigned queues.

        Raises:
            ConfigurationError: none given.
            ClientStateError: topics are subscribed.
        """
        if not mqs:
            raise ConfigurationError(
                "message_queues must be one queue at least; "
                "fetch_message_queues(topic) returns those of a topic"
            )
        self.check_assign()
        self.assigned = frozenset(mqs)

    def set_expression(self, subscription: SubscriptionData) -> None:
        """Say what is wanted of an assigned topic.

        Raises:
            ClientStateError: topics are subscribed.
        """
        self.check_assign()
        self.expressions = {**self.expressions, subscription.topic: subscription}

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return what is wanted of a topic."""
        if self.assigned is None:
            return self.subscriptions.get(topic)
        found = self.expressions.get(topic)
        if found is None:
            found = build_subscription(topic, None, 0)
            self.expressions = {**self.expressions, topic: found}
        return found
