"""The embedded server: name server, broker and their store, in one process.

Law: never imports the client; the two sides meet only on the wire.

Numbers such as C-187 in these modules are those of docs/behaviours.md.
"""
