"""A message listener as a sink of Spark: ``format("rocketmq-consumer")``.

Law: what runs in a task, and pyspark's classes around it; who the group's members are is told
elsewhere (``spark.push``).
"""
