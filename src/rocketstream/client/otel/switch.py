"""Switching OpenTelemetry on: for one client, or for all that are made from now on.

Law: off unless asked. The rest is in ``spans``, ``producers`` and ``consumers``.
"""

from __future__ import annotations

from typing import TypeVar

from rocketstream.client.instruments import INSTRUMENTS
from rocketstream.client.otel.consumers import observe_consumer
from rocketstream.client.otel.producers import observe_producer
from rocketstream.client.otel.spans import Telemetry
from rocketstream.errors import ConfigurationError

C = TypeVar("C")


def instrument(client: C, telemetry: Telemetry | None = None) -> C:
    """Trace one client from now on, and return it; a second time changes nothing.

    Args:
        client: a producer or consumer of either face, started or not.
        telemetry: makes spans and measurements; None for the global providers.

    Raises:
        ConfigurationError: it is not such a client.
    """
    telemetry = telemetry or Telemetry()
    if not observe_producer(telemetry, client) and not observe_consumer(telemetry, client):
        raise ConfigurationError(
            f"producers and consumers of rocketstream can be traced, not {type(client).__name__}"
        )
    return client


def instrument_all(telemetry: Telemetry | None = None) -> None:
    """Trace every client this process makes from now on.

    Args:
        telemetry: makes spans and measurements; None for the global providers, which may be set
            later.
    """
    chosen = telemetry or Telemetry()
    INSTRUMENTS.attach(lambda client: instrument(client, chosen))


def uninstrument_all() -> None:
    """Trace no client that is made from now on; those that are traced stay so."""
    INSTRUMENTS.attach(None)
