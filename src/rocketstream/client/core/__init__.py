"""Decisions of the client: events and the time come in, effects and values go out.

Law: pure; no sockets, files, clocks, threads or logging.
"""
