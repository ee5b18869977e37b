"""Measuring a model or a network before training: profiles, the doctor, the probe."""
