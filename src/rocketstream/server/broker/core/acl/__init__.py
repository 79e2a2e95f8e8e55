"""Decides who may do what on a broker, as upstream's PlainAccessValidator does.

Law: pure; values in, verdicts and documents out. Files, clocks and connections belong to the shell.
"""
