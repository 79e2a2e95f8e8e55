"""Messages for operators: found, followed, traced, decoded and masked.

Law: no message leaves without ``shown``; nothing is changed.
"""
