"""The decisions of a read before a task runs: which queues exist, and which rows of them to read.

Law: knows only what it hands to tasks (``spark.scan``), and no Spark: readers answer Spark with the
results from here. ``offsets`` and ``planning`` are pure.
"""
