"""The agents' face: what ``admin`` and ``watch`` know, as tools of a Model Context Protocol server.

Law: renders and decides nothing. Unknown is said with its reason; what others wrote is marked as
data; nothing is changed without a preview, and nothing at all unless the server may write.
"""
