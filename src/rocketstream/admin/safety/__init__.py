"""The safety of changes: the gate each one passes, the audit file, the files that undo."""
