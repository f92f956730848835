"""The worked examples, and the table of array libraries that they share with the comparison and the tests."""
