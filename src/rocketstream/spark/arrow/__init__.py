"""Stored records to Arrow: finding their fields, checking them, building the columns.

Law: pure, bytes in and record batches out. It knows columns and how to speak of a loss, nothing of
driver and executor, of Spark, of sockets or of files.
"""
