"""What a read does in a task: pull the ranges it was handed, and have them decoded.

Law: it knows nothing of how they were planned, and no Spark. ``pulling`` is pure.
"""
