"""Messages looked at: found, followed, traced, decoded and masked.

Law: questions only; no message leaves without ``shown``.
"""
