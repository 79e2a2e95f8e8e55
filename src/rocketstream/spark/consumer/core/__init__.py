"""The decisions of a task that consumes.

Pure: rows, answers and the time in; calls, returns and pauses out.
"""
