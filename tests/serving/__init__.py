"""Promise: the embedded servers: their start, settings, figures and fairness."""
