"""Access rights: who may do what on a broker, as upstream's PlainAccessValidator decides it.

Pure: values in, verdicts and documents out.
"""
