"""Brokers that do what a test says, and clients of them."""
