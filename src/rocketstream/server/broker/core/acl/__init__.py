"""Who may do what on a broker: the decisions of upstream's PlainAccessValidator.

Law: pure; values in, verdicts and documents out. Files, clocks and connections are the shell's.
"""
