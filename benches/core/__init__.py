"""What every bench has: cases and their problems, the clock, the check, the run and its records."""
