"""Sums with the same bits everywhere, of arrays that several devices hold."""
