"""What must be present before Spark can read: a Java, a Python, its packages, and this package.

Law: knows nothing of reading. Only ``shipping`` imports Spark, and only to teach its pickler.
"""
