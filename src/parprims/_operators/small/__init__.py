"""Translation of operators on small matrices and vectors: their arrays are arrays of symbolic scalars.

An operator that is not elementwise, such as a product of matrices of 4 x 4, is called once with `Small` arrays in place
of its elements (operator.py). A `Small` is an array of NumPy that holds a `Scalar` of the trace for each number, so
NumPy's own rules move and broadcast them, and every product, sum and inverse becomes operations on scalars (arrays.py).
JAX traces an operator that calls JAX, and its program is computed on such arrays (jax_programs.py).

The operator sees two elements along each axis before the trailing axes (`Lanes`). Each has a trace of its own, and the
traces must be equal. An operator that mixes elements, or that treats them differently, so has no translation.
"""
