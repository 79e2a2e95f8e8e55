"""OpenTelemetry for clients: ``otel.instrument(producer)``, ``otel.instrument_all()``.

Importing it needs the extra ``otel``.
"""

try:
    from rocketstream.client.otel.clients import instrument, instrument_all, uninstrument_all
    from rocketstream.client.otel.telemetry import LINKS_MAX, Carrier, Telemetry
except ImportError as _error:
    raise ImportError(
        f"tracing with OpenTelemetry needs the package opentelemetry-api ({_error}): "
        "pip install 'rocketstream[otel]'"
    ) from _error

__all__ = [
    "LINKS_MAX",
    "Carrier",
    "Telemetry",
    "instrument",
    "instrument_all",
    "uninstrument_all",
]
