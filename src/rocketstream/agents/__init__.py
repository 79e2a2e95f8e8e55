"""The agents' face: the answers of ``admin`` and ``watch`` as tools of an MCP server.

Law: an unknown value comes with its reason, and text that others wrote is marked as data. Nothing
is changed without a preview, and nothing at all unless the server may write.
"""
