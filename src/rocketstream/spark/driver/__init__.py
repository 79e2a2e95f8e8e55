"""The decisions of a read before a task runs: which queues exist, and which rows of them to read.

Law: no Spark here: readers answer Spark with the results of this package, which reach tasks as
values of ``spark.scan``. ``offsets`` and ``planning`` are pure.
"""
