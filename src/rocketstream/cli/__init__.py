"""The ``rocketstream`` command: a renderer of the packages below it.

Law: server, Spark and client are imported by the command that needs them, so that ``rocketstream
--help`` stays quick.
"""
