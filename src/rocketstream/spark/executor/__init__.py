"""The work of a read in a task: pulls the ranges of its plan, and decodes them.

Law: no Spark and nothing of planning is known here. ``pulling`` is pure.
"""
