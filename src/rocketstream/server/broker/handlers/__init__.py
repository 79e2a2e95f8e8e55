"""Thin handlers by subject: each decodes a request, calls core and store, and encodes an answer."""
