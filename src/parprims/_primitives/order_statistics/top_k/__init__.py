"""The first of all elements by kernels for CPUs."""
