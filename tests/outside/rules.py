"""Pure: every rule, and what a history breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.outside import consuming_rules, ordering_rules, sending_rules
from tests.outside.consuming_rules import lacking
from tests.outside.history import History
from tests.outside.promises import RULES, Anomaly

__all__ = ["RULES", "check", "copies", "waiting"]

MODULES = (sending_rules, ordering_rules, consuming_rules)


def check(history: History) -> list[Anomaly]:
    """Return all that a history holds against the guarantees."""
    return [Anomaly(rule.name, text) for rule in RULES.values() for text in rule.finds(history)]


def waiting(history: History) -> list[tuple[str, str]]:
    """Return the messages a group, or a member of a broadcast, has still to consume."""
    return list(_waiting(history))


def _waiting(history: History) -> Iterator[tuple[str, str]]:
    for group in history.consumers():
        for who, send in lacking(history, group):
            yield who, send.ident
    for send in history.sends:
        is_open = send.is_stored and send.how == "transaction" and not history.is_decided(send)
        if is_open:
            yield "transaction", send.ident


def copies(history: History) -> dict[str, int]:
    """Count what came more than once, which is allowed."""
    places = {(each.ident, each.place) for each in history.deliveries if each.group == "reader"}
    stored = Counter(ident for ident, _ in places)
    handed = Counter((each.group, each.place) for each in history.deliveries)
    return {
        "sent": len(history.sends),
        "acknowledged": sum(send.is_stored for send in history.sends),
        "unknown": sum(send.outcome in ("UNKNOWN", "OPEN") for send in history.sends),
        "handed out": len(history.deliveries),
        "stored again": sum(count - 1 for count in stored.values()),
        "handed out again": sum(count - 1 for count in handed.values()),
        "dead letters": len(history.letters),
        "faults": len(history.faults),
    }
