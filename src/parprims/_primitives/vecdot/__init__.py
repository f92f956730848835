"""Products of vectors."""
