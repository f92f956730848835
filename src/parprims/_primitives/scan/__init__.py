"""Scans and cumulative sums, products, extrema."""
