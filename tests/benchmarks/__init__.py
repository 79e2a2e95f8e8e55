"""Promise: the measurements' own decisions."""
