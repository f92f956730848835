"""The loops of kernels for CPUs: along lines, down columns, and by the canonical grouping."""
