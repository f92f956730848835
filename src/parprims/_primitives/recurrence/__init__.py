"""Linear recurrences, of numbers and of matrices."""
