"""The lite pull consumer: messages are fetched ahead, the caller polls them.

Law: a message is not committed before the caller has asked for more.
"""
