"""Loops of sums with the same bits everywhere, on CPUs."""
