"""Differences of neighbours."""
