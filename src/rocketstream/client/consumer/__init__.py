"""Consumers: from a queue's offset to a listener's verdict and back to the offset.

Law: failed messages are sent anew by the producer's sender; producers never import from here.
"""
