"""What surrounds the work of a call: the first call, small calls, programs of JAX."""
