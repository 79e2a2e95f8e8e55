"""OpenTelemetry: spans and measurements of clients.

Law: it is imported only when asked for, and changes nothing for a message.
"""
