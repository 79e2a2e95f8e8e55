"""Promise: what can be set, what is refused and in which words."""
