"""Consuming on Spark as its user sets it up: ``consume``, ``GroupClaim`` and ``SparkPushConsumer``.

Law: the user's own process; what runs in tasks is ``spark.consumer``'s business.
"""
