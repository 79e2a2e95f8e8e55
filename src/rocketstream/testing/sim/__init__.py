"""A simulated RocketMQ: name server, broker, store and clients in one process, on virtual time.

Every event, faults included, is drawn from a seed, and the same seed repeats it.

Law: runs the product as it is; replaces only time, network, disk, background work and chance.
"""
