"""The client: producer, push consumer, and the instance they share.

Law: public names are re-exported by ``rocketstream`` and ``rocketstream.aio``.
"""
