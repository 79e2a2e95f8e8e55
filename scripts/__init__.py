"""Small programs of the repository itself."""
