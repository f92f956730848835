"""Scans and reductions of elements that have axes of their own."""
