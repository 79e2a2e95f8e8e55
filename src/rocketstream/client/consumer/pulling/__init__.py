"""What the pulls of all consumers have in common.

Law: nothing is imported here.
"""
