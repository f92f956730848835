"""Operators, and the translation of their functions to C++ and Numba."""
