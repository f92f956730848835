"""Matrix products over any semiring."""
