"""The comparison as people read it: the page, tables, plots, and results held against another commit."""
