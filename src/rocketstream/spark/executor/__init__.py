"""The work of a read in a task: pulls the ranges of its plan, and has them decoded.

Law: knows nothing of how ranges were planned, and no Spark. ``pulling`` is pure.
"""
