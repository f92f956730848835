"""Callers' functions that use the functions of one library on the arrays of another.

An operator may be written with ``numpy``, ``torch`` or ``jax.numpy``, and called on arrays of any library. calls.py
runs it:

- Functions of NumPy and PyTorch let their arguments override them. calls.py passes stand-ins (stand_ins.py), which call
  the equivalent function of the arrays' library. composed.py makes those that the library lacks of others.
- Functions of ``jax.numpy`` take only arrays of JAX. JAX traces the caller's function into a program of elementwise
  operations, and functions of the array API standard compute these (jax_programs.py). Kernels are translated from this
  program too (tracing.py).
"""
