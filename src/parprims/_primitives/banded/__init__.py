"""Banded and block tridiagonal systems."""
