"""Consuming on Spark as its user sets it up: ``consume``, ``GroupClaim`` and ``SparkPushConsumer``.

The package runs in the user's own process; ``spark.consumer`` is the part that runs in tasks.
"""
