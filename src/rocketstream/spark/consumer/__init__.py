"""A message listener as a sink of Spark: ``format("rocketmq-consumer")``.

The package has the work of tasks, and pyspark's classes around it; ``spark.push`` has the
membership in the group.
"""
