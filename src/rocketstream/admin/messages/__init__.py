"""Looks at messages: finds, follows, traces, decodes and masks them.

Law: only asks; no message leaves without ``shown``.
"""
