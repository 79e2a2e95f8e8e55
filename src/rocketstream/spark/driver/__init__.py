"""What a read decides before a task runs: which queues there are, and which rows of them to read.

Law: it knows nothing of tasks but what it hands them (``spark.scan``), and no Spark: readers
answer Spark with what is here. ``offsets`` and ``planning`` are pure.
"""
