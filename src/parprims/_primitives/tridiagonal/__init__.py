"""Tridiagonal systems."""
