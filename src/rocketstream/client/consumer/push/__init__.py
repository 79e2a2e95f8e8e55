"""The push consumer: pulls by itself, hands messages to the user's listener.

Law: pulling and life cycle; listeners are called by ``consume``, queues divided by
``rebalance_impl``.
"""
