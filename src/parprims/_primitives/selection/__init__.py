"""Selection, partition by a mask, unique and run lengths."""
