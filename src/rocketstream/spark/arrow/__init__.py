"""Stored records to Arrow: their fields are found, checked and built into columns.

Pure: bytes in, record batches out. The package knows columns and how to report a loss, but nothing
of driver and executor, Spark, sockets or files.
"""
