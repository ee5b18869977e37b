"""What the network was trained on, and when it has to learn from a running job."""

import logging

from autobyte.config import Space
from autobyte.units import format_bytes

log = logging.getLogger(__name__)

ADAPT = 0.10  # of the observed step time: a prediction that is off by more is a lesson (AutoByte, sec. III-B)
SEEN = Space()


def warn_of_unseen(space: Space) -> None:
    """Log where the network has to predict what it was not trained on.

    Args:
        space: of the tuner.
    """
    (least, most), (low, high) = space.partition_bytes, space.credit_ratio
    fixed = [knob for knob, value in space.default.knobs.items() if SEEN.default.knobs.get(knob) != value]
    seen = {
        f"partitions of {format_bytes(least)} to {format_bytes(most)}": _within(
            space.partition_bytes, SEEN.partition_bytes
        ),
        f"credits of {low:g}x to {high:g}x": _within(space.credit_ratio, SEEN.credit_ratio),
        f"the policy '{space.default.policy}'": space.default.policy == SEEN.default.policy,
        **{f"the knob '{name}'": False for name in (*space.knobs, *fixed)},
    }
    unseen = ", ".join(name for name, known in seen.items() if not known)
    if unseen:
        log.warning("the network was not trained on %s: it predicts there all the same, and measures", unseen)


def _within(some: tuple[float, float], all_: tuple[float, float]) -> bool:
    return all_[0] <= some[0] and some[1] <= all_[1]
