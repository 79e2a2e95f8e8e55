"""Consuming on Spark as its user sets it up: ``consume``, ``GroupClaim`` and ``SparkPushConsumer``.

Law: runs in the user's own process; ``spark.consumer`` has what runs in tasks.
"""
