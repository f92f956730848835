"""Facts about arrays, dtypes, elements and options, for all other rooms."""
