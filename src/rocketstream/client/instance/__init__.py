"""The client instance: connections, routes, heartbeats, and what brokers ask of clients.

Law: knows groups by what they promise (``groups``), no producer and no consumer.
"""
