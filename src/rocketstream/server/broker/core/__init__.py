"""What a broker decides: pure state machines, events and clock readings in, values out."""
