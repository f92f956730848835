"""The cases of the comparison, a module for each primitive."""
