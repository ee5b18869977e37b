"""Tuners side by side: a contest under equal conditions, and the verdict on it."""
