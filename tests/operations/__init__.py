"""Promise: what operators look at and change: shown first, done once, taken back."""
