"""Message trace: records of what a client did, sent to a topic of their own (C-541 to C-546).

Law: stands above the sender it uses; never keeps a client from its work.
"""
