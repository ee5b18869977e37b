"""Ways to choose the two knobs, one file each. `base` is the interface and the table."""

from autobyte.tuners.base import TUNERS, Tuner

__all__ = ["TUNERS", "Tuner"]
