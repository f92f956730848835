"""How plans of kernels for CPUs run: on arrays in memory, and as calls of XLA inside programs of JAX."""
