"""The embedded server: name server, broker and their store, in one process.

Law: never imports the client; both sides meet on the wire only.
"""
