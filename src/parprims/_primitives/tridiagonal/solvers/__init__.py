"""The solvers of tridiagonal systems: the text of their kernels."""
