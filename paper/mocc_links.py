"""MOCC beside other congestion controls on one simulated link: sweeps, fairness, friendliness.

    python paper/mocc_links.py

Simulated. Writes data/mocc_links.csv (sweeps over rate, delay, queue and loss) and data/mocc_sharing.csv (flows of a
kind, and MOCC beside CUBIC and BBR). A run lasts 16 s of virtual time, and the last half counts; flows that share
have twice as long. Networks are those that ship with the package. Seeds differ in which packets are lost.
"""

import statistics
from collections.abc import Iterator

import runs
import sheet

from autobyte.congestion.algos import ALGORITHMS, make_control
from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import Bottleneck, RateProfile, Route
from autobyte.congestion.ranges import MBIT
from autobyte.congestion.sharing import jain, share_link

SECONDS, SETTLED_S = 16.0, 8.0
BASE = {"mbit": 10.0, "round_trip_ms": 50.0, "queue": 100, "loss": 0.0}
SWEEPS = {
    "mbit": (1.0, 5.0, 10.0, 50.0),
    "round_trip_ms": (20.0, 50.0, 100.0, 200.0),
    "queue": (10, 40, 200, 500),
    "loss": (0.0, 0.001, 0.01, 0.03, 0.1),
}
OBJECTIVES = (Objective(0.8, 0.1, 0.1), Objective(0.1, 0.8, 0.1), Objective(0.1, 0.1, 0.8))
PAIRS = (("cubic", "cubic"), ("bbr", "bbr"), ("vegas", "vegas"), ("copa", "copa"), ("allegro", "allegro"))
PAIRS += (("vivace", "vivace"), ("aurora", "aurora"), ("mocc", "mocc"), ("mocc", "cubic"), ("mocc", "bbr"))

parser = sheet.options(__doc__)
parser.add_argument("--seeds", type=int, default=3, help="runs of each, with other packets lost (default: 3)")
options = parser.parse_args()
SEEDS = options.seeds
if options.quick:
    SECONDS, SETTLED_S, SEEDS = 2.0, 1.0, 1
    SWEEPS = {"loss": (0.0, 0.01)}


def controls() -> Iterator[tuple[str, Objective]]:
    """Every congestion control, MOCC once for each objective."""
    for name in ALGORITHMS:
        for objective in OBJECTIVES if name == "mocc" else OBJECTIVES[:1]:
            yield name, objective


def link_of(setting: dict) -> tuple[Bottleneck, Route]:
    profile = RateProfile.steady(setting["mbit"] * MBIT)
    return Bottleneck(profile, int(setting["queue"]), setting["loss"]), Route(setting["round_trip_ms"] / 1e3)


def interval(values: list[float]) -> float:
    """The standard error of a mean."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def alone(cell: tuple[str, float, str, Objective]) -> sheet.Row:
    """What a control gets of a link that it has for itself."""
    sweep, value, name, objective = cell
    setting = BASE | {sweep: value}
    link, route = link_of(setting)
    shares = [
        share_link(link, [(route, make_control(name, objective, seed=seed))], seconds=SECONDS,
                   settled_s=SETTLED_S, seed=options.seed + seed)[0]
        for seed in range(SEEDS)
    ]  # fmt: skip
    row = {"sweep": sweep} | setting | {"control": name, "objective": str(objective) * (name == "mocc")}
    for column in ("utilisation", "latency_ratio", "loss"):
        found = [getattr(share, column) for share in shares]
        row |= {f"{column}_got": statistics.mean(found), f"{column}_error": interval(found)}
    return row


def together(cell: tuple[str, str, Objective]) -> sheet.Row:
    """What two controls get of one link; the second begins later."""
    first, second, objective = cell
    link, route = link_of(BASE)
    fairness, part, loss = [], [], []
    for seed in range(SEEDS):
        late = Route(route.round_trip_s, start_s=SETTLED_S / 5)
        flows = [(route, make_control(first, objective, seed=seed))]
        flows.append((late, make_control(second, objective, seed=seed + SEEDS)))
        shares = share_link(link, flows, seconds=2 * SECONDS, settled_s=SECONDS, seed=options.seed + seed)
        rates = [share.packets_per_s for share in shares]
        fairness.append(jain(rates))
        part.append(rates[0] / sum(rates))
        loss.append(statistics.mean(share.loss for share in shares))
    return {
        "first": first,
        "second": second,
        "objective": str(objective) * ("mocc" in (first, second)),
        "jain": statistics.mean(fairness),
        "jain_error": interval(fairness),
        "part_of_first": statistics.mean(part),
        "part_error": interval(part),
        "loss": statistics.mean(loss),
    }


if not options.redraw:
    settings = [(sweep, value) for sweep, values in SWEEPS.items() for value in values]
    cells = [(*setting, *control) for setting in settings for control in controls()]
    sheet.write(runs.spread(alone, cells), "mocc_links", options.out)
    pairs = [
        (first, second, objective)
        for first, second in PAIRS
        for objective in (OBJECTIVES[:2] if "mocc" in (first, second) else OBJECTIVES[:1])
    ]
    sheet.write(runs.spread(together, pairs), "mocc_sharing", options.out)
