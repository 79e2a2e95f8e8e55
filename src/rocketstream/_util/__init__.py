"""Small helpers without a meaning of their own."""
