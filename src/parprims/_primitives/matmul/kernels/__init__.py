"""The text of the kernels of matrix products."""
