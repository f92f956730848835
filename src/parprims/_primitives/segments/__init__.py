"""Segment reductions, and scans, reductions and sorts of segments."""
