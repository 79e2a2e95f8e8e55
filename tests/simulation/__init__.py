"""Promise: the simulator: its world, its workloads, and the product in it."""
