"""The search for what stands in the measured tables of the library."""
