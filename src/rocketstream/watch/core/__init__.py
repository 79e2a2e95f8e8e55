"""Decisions of the watch: what is kept, when to sweep next, which notices are sent.

Law: PURE. States and times in, values out; no sockets, files, clocks, threads.
"""
