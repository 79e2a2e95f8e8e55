"""The client instance: connections, routes, heartbeats, and the requests of brokers.

Law: it knows producers and consumers by the protocols of ``groups`` alone.
"""
