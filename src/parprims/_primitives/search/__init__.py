"""Binary search and merging."""
