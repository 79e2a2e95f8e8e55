"""Consuming lite topics (RIP-83); not to be confused with the lite pull consumer of ``lite``.

Law: names only; the classes are in the modules of this package.
"""
