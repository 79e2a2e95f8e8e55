"""OpenTelemetry for clients: ``otel.instrument(producer)``, ``otel.instrument_all()``.

Law: names only; importing it needs the extra ``otel``.
"""

try:
    from rocketstream.client.otel.spans import LINKS_MAX, Carrier, Telemetry
    from rocketstream.client.otel.switch import instrument, instrument_all, uninstrument_all
except ImportError as error:
    raise ImportError(
        f"tracing with OpenTelemetry needs the package opentelemetry-api ({error}): "
        "pip install 'rocketstream[otel]'"
    ) from error

__all__ = [
    "LINKS_MAX",
    "Carrier",
    "Telemetry",
    "instrument",
    "instrument_all",
    "uninstrument_all",
]
