"""Compilation that CPUs and GPUs share: the cache on disk, first calls, and plans that are captured."""
