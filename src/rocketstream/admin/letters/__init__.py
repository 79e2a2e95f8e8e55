"""Dead letters: why there are any, and sending them back.

Law: each is sent again at least once, and written down before the next.
"""
