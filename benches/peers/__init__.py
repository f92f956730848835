"""Loops as people write them by hand, compiled by Numba."""
