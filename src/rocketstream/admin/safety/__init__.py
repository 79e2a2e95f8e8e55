"""What every change passes and leaves behind: the gate, the audit file, the files that undo.

Law: it knows no topic and no group; what is changed, and whether, is decided by who calls.
"""
