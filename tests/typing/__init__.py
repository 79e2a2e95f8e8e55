"""What type checkers find, and what they let pass."""
