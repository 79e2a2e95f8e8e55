"""Messages as Arrow columns, for Spark's sink and producers alike.

Pure: columns in, the bytes of requests out.
"""
