"""What the policy sees of an interval, and what its answer does to the rate (MOCC, sec. 4.1).

Three numbers describe an interval: packets sent per packet acknowledged, mean round trip over the least, and the
gradient of the round trip. They are ratios, and mean the same on a slow link and on a fast one. The policy sees those
of the last ten intervals, behind the three weights of the objective.
"""

import numpy as np
import numpy.typing as npt

from autobyte.job import Floats

HISTORY = 10  # intervals that the policy sees
FEATURES = 3
INPUTS = 3 + HISTORY * FEATURES
ALPHA = 0.025  # what an action of 1 changes
MOST_ACTION = 8.0  # ours: an interval changes the rate by at most a fifth
LEAST_PER_S, MOST_PER_S = 5.0, 1e8  # packets: below, an interval would take seconds
PACKETS = 4  # ours: that an interval has time to send at least

Values = npt.NDArray[np.float32]
Numbers = Floats | np.float64


def look(sent: Numbers, acked: Numbers, round_trip_s: Numbers, least_s: Numbers, gradient: Numbers) -> Values:
    """The features of intervals; each argument is a number or has shape [n], the answer [3] or [n, 3].

    Args:
        sent: packets.
        acked: packets.
        round_trip_s: mean of the interval, or of an earlier one if nothing arrived.
        least_s: least round trip of the flow so far.
        gradient: of the round trip (s/s).
    """
    send_ratio = np.minimum(sent / np.maximum(acked, 1.0), 5.0) - 1.0
    latency_ratio = np.minimum(round_trip_s / least_s, 6.0) - 1.0
    return np.stack([send_ratio, latency_ratio, 2.0 * np.clip(gradient, -1.0, 1.0)], axis=-1).astype(np.float32)


def next_pace(pace: Numbers, action: Numbers) -> Floats:
    """The rate that follows: a positive action multiplies by 1 + αa, a negative one divides by 1 − αa."""
    step = ALPHA * np.clip(action, -MOST_ACTION, MOST_ACTION)
    changed: Floats = np.where(step > 0, pace * (1.0 + step), pace / (1.0 - step))
    return np.clip(changed, LEAST_PER_S, MOST_PER_S)


def length_s(round_trip_s: Numbers, pace: Numbers) -> Floats:
    """How long the next interval is: the last mean round trip, and long enough for some packets."""
    length: Floats = np.maximum(round_trip_s, PACKETS / pace)
    return length
