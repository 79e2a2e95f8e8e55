"""What must be there before Spark can read: a Java, a Python, its packages, and this package.

Law: it knows nothing of reading. Only ``shipping`` imports Spark, and only to teach its pickler.
"""
