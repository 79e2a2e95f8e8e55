"""The ``rocketstream`` command: a renderer of the packages below it.

Law: server, Spark and client are imported within the command that needs them, so that all others
stay quick.
"""
