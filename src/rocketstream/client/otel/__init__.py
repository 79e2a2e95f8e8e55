"""OpenTelemetry: spans and measurements of clients.

Law: imported only when asked for; never changes what happens to a message.
"""
