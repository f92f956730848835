"""Calls with ``offsets=``."""
