"""Stored records to Arrow: finds their fields, checks them, builds the columns.

Law: pure, bytes in and record batches out. Knows columns and how to report a loss, but nothing of
driver and executor, Spark, sockets or files.
"""
