"""Task queues and message frameworks of others over RocketMQ, each in its framework's own manner.

Law: one module a framework, which alone imports it; none is imported unless it is asked for. What
they share, taking messages in until a framework says that they are done, is ``intake``.
"""
