"""Decisions of the watch: which states are kept, when to sweep next, which notices are sent.

Pure: states and times in, values out; no sockets, files, clocks, threads.
"""
