"""Where a group is: offset stores at brokers, in a file, or of the user's own.

Law: offsets only; who may move them is decided elsewhere.
"""
