"""The choice of a method: prepared calls, derivatives as rules, primitives made of others."""
