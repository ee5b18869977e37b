"""Schedulers on shaped links: the same model, the same hosts, one after the other."""
