"""Tests of the pure protocol: bytes and values, no network."""
