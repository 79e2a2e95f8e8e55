"""The client: producers, consumers, and the instance they share.

Public names are those that ``rocketstream`` and ``rocketstream.aio`` export.
"""
