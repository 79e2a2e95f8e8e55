"""The lite pull consumer: messages are fetched ahead, the caller polls them.

Law: what the caller has not asked beyond is not committed.
"""
