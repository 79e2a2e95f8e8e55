"""Promise: one connection each: deadlines, bounds, TLS, hostile bytes and a clean end."""
