"""The entry point ``opentelemetry-instrument`` finds: traces every client without a line of code.

It stands apart, as importing it needs ``opentelemetry-instrumentation``, which that command brings.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from rocketstream.client.otel.clients import instrument_all, uninstrument_all
from rocketstream.client.otel.telemetry import Telemetry


class RocketstreamInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Switches tracing on for every client that is made from then on, and off again.

    ``instrument`` takes ``tracer_provider``, ``meter_provider`` and ``propagator``; what is not
    given is the global one.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what else must be installed: nothing, what is traced is this package."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        instrument_all(
            Telemetry(
                kwargs.get("tracer_provider"),
                kwargs.get("meter_provider"),
                kwargs.get("propagator"),
            )
        )

    def _uninstrument(self, **_: Any) -> None:
        uninstrument_all()
