"""Consumers: from a queue's offset to a listener's verdict and back to the offset.

Law: uses the producer's sender for what must be sent anew; producers never import from here.
"""
