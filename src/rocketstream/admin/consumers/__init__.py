"""Looks into the members of a group, and finds out why it is behind.

Law: evidence is gathered here, causes are named in ``core``.
"""
