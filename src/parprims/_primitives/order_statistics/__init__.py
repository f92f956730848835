"""Median, quantile, partition and top_k."""
