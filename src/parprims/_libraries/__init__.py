"""The differences between array libraries: their settings, loops over steps, and the bridge to NumPy."""
