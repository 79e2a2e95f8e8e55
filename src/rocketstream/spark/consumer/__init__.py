"""A message listener as a sink of Spark: ``format("rocketmq-consumer")``.

Law: what runs in a task, and pyspark's classes around it; membership in the group is handled
elsewhere (``spark.push``).
"""
