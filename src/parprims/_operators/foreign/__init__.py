"""Callers' functions that use the functions of one library on the arrays of another.

An operator may be written with ``numpy``, ``torch`` or ``jax.numpy``, whatever arrays it is given. calls.py runs it on
arrays of any library:

- NumPy's and PyTorch's functions let arguments override them. They are given stand-ins (stand_ins.py), which call the
  function of the same name of the library of the arrays.
- Functions of ``jax.numpy`` take arrays of JAX alone. JAX traces the caller's function, and the operations of that
  program, all elementwise, are done by the array API standard's functions (jax_programs.py). The trace of a kernel
  (tracing.py) does so too.
"""
