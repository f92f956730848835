"""Texts that kernels for CPUs begin with, which only Numba runs, and declarations of all that loops call."""
