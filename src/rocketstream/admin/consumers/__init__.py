"""Looking into the members of a group, and why it is behind.

Law: evidence is gathered here, causes are named in ``core``.
"""
