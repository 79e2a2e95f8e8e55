"""The main job on real data: flights through RocketMQ into a table on Spark, and the proof.

Law: a user of the package like any other; nothing here is imported by it.
"""
