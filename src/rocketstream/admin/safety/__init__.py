"""What every change passes and leaves behind: the gate, the audit file, the files that undo.

Law: knows no topic and no group; the caller decides what is changed, and whether.
"""
