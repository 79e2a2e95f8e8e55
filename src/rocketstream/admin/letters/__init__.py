"""Dead letters: why there are any, and sending them again.

Law: each selected letter is sent at least once, and the place is kept as letters are sent.
"""
