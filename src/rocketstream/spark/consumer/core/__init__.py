"""The decisions of a task that consumes.

Law: pure: rows, answers and the time in; calls, returns and pauses out.
"""
