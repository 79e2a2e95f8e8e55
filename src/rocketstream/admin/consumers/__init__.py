"""The members of a group and their state, and the causes why the group is behind.

Evidence is gathered here, ``core`` names causes.
"""
