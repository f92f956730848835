"""The table of calls on a CPU by which `auto` is judged."""
