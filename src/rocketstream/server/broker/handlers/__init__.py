"""Thin handlers by subject: decode, ask core and store, encode."""
