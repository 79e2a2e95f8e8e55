"""Whole programs over the Spark connector: what ``rocketstream ingest`` and the demo run.

Law: only ``cli`` and the demo import them. Importing this package imports no Spark.
"""
