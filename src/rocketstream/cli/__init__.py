"""The ``rocketstream`` command: a renderer of what the packages below it do.

Law: no protocol here; server, Spark and client are imported by the command that needs them, so
that ``rocketstream --help`` stays quick.
"""
