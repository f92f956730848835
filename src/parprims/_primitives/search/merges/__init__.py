"""Merges of two sorted arrays."""
