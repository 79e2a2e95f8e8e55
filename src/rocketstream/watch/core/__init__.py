"""Decisions of the watch: what is kept, when to look next, what is told.

Law: PURE. States and times in, values out; no sockets, files, clocks, threads.
"""
