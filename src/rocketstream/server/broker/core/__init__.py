"""The decisions of a broker: pure state machines, events and clock readings in, values out."""
