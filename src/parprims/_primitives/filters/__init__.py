"""Filters: lfilter and sosfilt."""
