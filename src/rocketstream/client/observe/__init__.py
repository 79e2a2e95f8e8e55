"""What looks at messages passing by: hooks of the user, message trace, statistics.

Law: nothing here may change what happens to a message, but for the filter hook, which may drop it.
"""
