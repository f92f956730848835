"""Compilation for CPUs and GPUs: the cache on disk, first calls, capture of plans, and tables in data files."""
