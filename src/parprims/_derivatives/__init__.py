"""Derivative rules on JAX and PyTorch."""
