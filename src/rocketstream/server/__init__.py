"""The embedded server: name server, broker and their store, in one process.

Law: never imports the client; the two sides meet only on the wire.
"""
