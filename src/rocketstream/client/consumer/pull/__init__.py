"""The pull consumer: queues and offsets are the caller's.

Law: decides nothing about progress.
"""
