"""The comparison: every primitive by every method, beside the libraries people use today."""
