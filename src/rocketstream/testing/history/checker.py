"""The whole check: takes a history and returns the promises it breaks.

Pure: n log n in the number of events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from rocketstream.testing.history.anomaly import Anomaly, AnomalyKind, Rules
from rocketstream.testing.history.consuming import check_consuming
from rocketstream.testing.history.events import Event
from rocketstream.testing.history.ordering import check_ordering
from rocketstream.testing.history.sending import check_sending
from rocketstream.testing.history.story import sort

DEFAULT_RULES = Rules()


def check(history: Iterable[Event], rules: Rules = DEFAULT_RULES) -> list[Anomaly]:
    """Return the anomalies of a history, at most ``rules.reports_max`` of each kind.

    Args:
        history: the events, in any order; events with equal times in the order they happened.
        rules: the limits and tolerances to judge by.
    """
    stories = sort(history)
    parts = check_sending, check_consuming, check_ordering
    return _first(chain.from_iterable(part(stories, rules) for part in parts), rules)


def check_logs(history: Iterable[Event], rules: Rules = DEFAULT_RULES) -> list[Anomaly]:
    """Return the anomalies of what the brokers hold alone: see ``check``."""
    return _first(check_sending(sort(history), rules), rules)


def _first(anomalies: Iterable[Anomaly], rules: Rules) -> list[Anomaly]:
    found: list[Anomaly] = []
    counts: Counter[AnomalyKind] = Counter()
    for anomaly in anomalies:
        counts[anomaly.kind] += 1
        if counts[anomaly.kind] <= rules.reports_max:
            found.append(anomaly)
    return found
