"""The decisions of a broker: state machines.

Pure: events and clock readings in, values out.
"""
