"""Sums with the same bits everywhere."""
