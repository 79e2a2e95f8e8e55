"""Changes of groups, topics and offsets: planned, shown, carried out, read back.

Law: nothing reaches a broker but through the gate of ``safety``.
"""
