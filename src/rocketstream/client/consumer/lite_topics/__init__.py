"""Consuming lite topics (RIP-83); not to be confused with the lite pull consumer of ``lite``."""
