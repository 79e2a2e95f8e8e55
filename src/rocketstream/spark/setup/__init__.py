"""The needs of Spark before it can read: a Java, a Python, its packages, and this package.

Law: only ``shipping`` imports Spark.
"""
