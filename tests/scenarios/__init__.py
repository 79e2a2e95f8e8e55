"""The product in simulation: who is there, what they do, and campaigns of many seeds."""
