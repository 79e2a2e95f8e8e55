"""Task queues and message frameworks of others over RocketMQ, each in its framework's own manner.

Law: one module per framework, which alone imports it; none is imported unless it is asked for.
``intake`` is their common part: messages taken in until a framework says that they are done.
"""
