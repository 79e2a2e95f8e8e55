"""Promise: tools of agents: bounded, typed, approved by a person."""
