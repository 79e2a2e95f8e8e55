"""Spark reads RocketMQ: the ``rocketmq`` data source.

Law: importing this package imports neither Spark nor Arrow.
"""
