"""The texts that kernels for CPUs begin with, and declarations of the functions that loops call."""
