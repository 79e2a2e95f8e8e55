"""Messages as Arrow columns, both ways, for Spark, producers and consumers alike.

Pure: columns in, the bytes of requests out; the bytes of answers in, record batches out.
"""
