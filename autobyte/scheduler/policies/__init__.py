"""Published ways to cut and order gradients, one file each. `base` is the interface and the table."""

from autobyte.scheduler.policies.base import (
    POLICIES,
    Policy,
    check_ranges,
    check_sizes,
    label_of,
    make_plan,
    space_of,
)

__all__ = ["POLICIES", "Policy", "check_ranges", "check_sizes", "label_of", "make_plan", "space_of"]
