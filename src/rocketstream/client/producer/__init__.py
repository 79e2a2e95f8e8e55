"""Producers: from a message in the user's hand to the broker's acknowledgement.

Law: knows nothing of consumers.
"""
