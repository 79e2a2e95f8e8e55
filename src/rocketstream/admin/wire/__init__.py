"""The requests behind the admin operations, and how their answers are read.

Law: no joins, no decisions. ``changes`` alone has requests that change a cluster.
"""
