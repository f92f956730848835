"""Reductions by ids: by tables, rows and atomic operations on GPUs."""
