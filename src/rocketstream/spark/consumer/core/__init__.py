"""What a task decides when it consumes.

Law: pure: rows, answers and the time in; calls, returns and pauses out.
"""
