"""Facts about arrays, dtypes, elements and options that every other room asks for."""
