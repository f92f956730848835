"""The primitives, each in a room of its own."""
