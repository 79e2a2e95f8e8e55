"""A message listener on Spark: the sink ``format("rocketmq-consumer")``, and its group's claim.

``batches``, ``calls``, ``messages``, ``send_back`` and ``task`` are the work of tasks; the others
are of the user's process, ``sink`` of both.
"""
