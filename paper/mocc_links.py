"""MOCC beside other congestion controls on one simulated link: sweeps, fairness, friendliness.

    python paper/mocc_links.py

Simulated. Writes figures/mocc_links.{pdf,png}, data/mocc_links.csv (sweeps over rate, delay, queue and loss) and
data/mocc_sharing.csv (flows of a kind, and MOCC beside CUBIC and BBR). A run lasts 16 s of virtual time, and the last
half counts; flows that share have twice as long. Networks are those that ship with the package. A seed draws which
packets are lost, and rate, delay, queue and the start of the second flow up to 3 % from what is said; all controls
meet the same.
"""

import statistics
from collections.abc import Iterator

import mocc_networks
import numpy as np
import runs
import sheet
import style

from autobyte.congestion.algos import ALGORITHMS, make_control
from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import Bottleneck, RateProfile, Route
from autobyte.congestion.ranges import MBIT
from autobyte.congestion.sharing import jain, share_link
from autobyte.congestion.stored import digest, shipped

SECONDS, SETTLED_S = 16.0, 8.0
APART = 0.03  # how far a seed's link is from what is said, at most
BASE = {"mbit": 10.0, "round_trip_ms": 50.0, "queue": 100, "loss": 0.0}
SWEEPS = {
    "mbit": (1.0, 5.0, 10.0, 50.0),
    "round_trip_ms": (20.0, 50.0, 100.0, 200.0),
    "queue": (10, 40, 200, 500),
    "loss": (0.0, 0.001, 0.01, 0.03, 0.1),
}
TEXTS = {
    "mbit": "link (Mbit/s)",
    "round_trip_ms": "round trip (ms)",
    "queue": "queue (packets)",
    "loss": "random loss (%)",
}
SHOWN = {"utilisation_got": "utilisation (%)", "latency_ratio_got": "latency ratio (%)", "loss_got": "loss (%)"}
LINES = {  # control, objective: name, colour, dashes
    ("cubic", ""): ("CUBIC", style.ORANGE, "-"),
    ("vegas", ""): ("Vegas", style.ORANGE, (0, (1, 0.8))),
    ("bbr", ""): ("BBR", style.RED, "-"),
    ("copa", ""): ("Copa", style.MAGENTA, "-"),
    ("allegro", ""): ("Allegro", style.TEAL, (0, (1, 0.8))),
    ("vivace", ""): ("Vivace", style.TEAL, "-"),
    ("aurora", ""): ("Aurora (ours)", style.MUTED, "-"),
    ("orca-style", ""): ("Orca-style", style.MUTED, (0, (1, 0.8))),
    ("mocc", "⟨0.8, 0.1, 0.1⟩"): ("MOCC ⟨0.8, 0.1, 0.1⟩", style.BLUE, "-"),
    ("mocc", "⟨0.1, 0.8, 0.1⟩"): ("MOCC ⟨0.1, 0.8, 0.1⟩", style.BLUE, (0, (4, 1.2))),
    ("mocc", "⟨0.1, 0.1, 0.8⟩"): ("MOCC ⟨0.1, 0.1, 0.8⟩", style.BLUE, (0, (1, 0.8))),
}
OBJECTIVES = (Objective(0.8, 0.1, 0.1), Objective(0.1, 0.8, 0.1), Objective(0.1, 0.1, 0.8))
PAIRS = (("cubic", "cubic"), ("bbr", "bbr"), ("vegas", "vegas"), ("copa", "copa"), ("allegro", "allegro"))
PAIRS += (("vivace", "vivace"), ("aurora", "aurora"), ("mocc", "mocc"), ("mocc", "cubic"), ("mocc", "bbr"))

parser = sheet.options(__doc__)
parser.add_argument("--seeds", type=int, default=3, help="runs of each, on links that differ a little (default: 3)")
options = parser.parse_args()
SEEDS = options.seeds
if options.quick:
    SECONDS, SETTLED_S, SEEDS = 2.0, 1.0, 1
    SWEEPS = {"loss": (0.0, 0.01)}
STUDY = mocc_networks.study_of(options)  # where rows are kept: a run that was stopped goes on
LEARNED = {name: digest(shipped(name)) for name in ("mocc", "aurora", "orca-style")}


def controls() -> Iterator[tuple[str, Objective]]:
    """Every congestion control, MOCC once for each objective."""
    for name in ALGORITHMS:
        for objective in OBJECTIVES if name == "mocc" else OBJECTIVES[:1]:
            yield name, objective


def link_of(setting: dict, seed: int) -> tuple[Bottleneck, Route, Route]:
    """A link close to a setting, and the ways of a flow and of one that begins later; drawn by the seed alone."""
    rate, delay, queue, start = 1 + np.random.default_rng([options.seed, seed]).uniform(-APART, APART, 4)
    profile, round_trip_s = RateProfile.steady(rate * setting["mbit"] * MBIT), delay * setting["round_trip_ms"] / 1e3
    link = Bottleneck(profile, round(queue * setting["queue"]), setting["loss"])
    return link, Route(round_trip_s), Route(round_trip_s, start_s=start * SETTLED_S / 5)


def made_from(*cell: object) -> tuple[object, ...]:
    """What a row depends on, beside its cell."""
    return (SECONDS, SEEDS, options.seed, BASE, *(LEARNED[name] for name in LEARNED if name in cell))


def interval(values: list[float]) -> float:
    """The standard error of a mean."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def alone(cell: tuple[str, float, str, Objective]) -> sheet.Row:
    """What a control gets of a link that it has for itself."""
    row: sheet.Row = mocc_networks.kept(STUDY, "alone_on_link", (cell, *made_from(*cell)), lambda: _alone(cell))
    return row


def _alone(cell: tuple[str, float, str, Objective]) -> sheet.Row:
    sweep, value, name, objective = cell
    setting = BASE | {sweep: value}
    shares = []
    for seed in range(SEEDS):
        link, route, _ = link_of(setting, seed)
        flows = [(route, make_control(name, objective, seed=seed))]
        shares += share_link(link, flows, seconds=SECONDS, settled_s=SETTLED_S, seed=options.seed + seed)
    row = {"sweep": sweep} | setting | {"control": name, "objective": str(objective) * (name == "mocc")}
    for column in ("utilisation", "latency_ratio", "loss"):
        found = [getattr(share, column) for share in shares]
        row |= {f"{column}_got": statistics.mean(found), f"{column}_error": interval(found)}
    return row


def together(cell: tuple[str, str, Objective]) -> sheet.Row:
    """What two controls get of one link; the second begins later."""
    row: sheet.Row = mocc_networks.kept(STUDY, "together", (cell, *made_from(*cell)), lambda: _together(cell))
    return row


def _together(cell: tuple[str, str, Objective]) -> sheet.Row:
    first, second, objective = cell
    fairness, part, loss = [], [], []
    for seed in range(SEEDS):
        link, route, late = link_of(BASE, seed)
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
    pairs = [
        (first, second, objective)
        for first, second in PAIRS
        for objective in (OBJECTIVES[:2] if "mocc" in (first, second) else OBJECTIVES[:1])
    ]
    sheet.write(runs.spread(together, pairs), "mocc_sharing", options.out)
    settings = [(sweep, value) for sweep, values in SWEEPS.items() for value in values]
    cells = [(*setting, *control) for setting in settings for control in controls()]
    sheet.write(runs.spread(alone, cells), "mocc_links", options.out)

swept = sheet.read("mocc_links", options.out)
figure, panels = style.new(3.6, rows=3, columns=len(SWEEPS), width=style.PAGE, sharey="row", squeeze=False)
for place, sweep in enumerate(SWEEPS):
    for (control, objective), (name, colour, dashes) in LINES.items():
        rows = sheet.where(swept, sweep=sweep, control=control, objective=objective).sort_values(sweep)
        for axes, column in zip(panels[:, place], SHOWN, strict=True):
            axes.plot(range(len(rows)), 100 * rows[column].to_numpy(), color=colour, linestyle=dashes, label=name)
    values = sorted(swept.loc[swept["sweep"] == sweep, sweep].unique())
    for axes in panels[:, place]:
        axes.set_xticks(range(len(values)), [f"{(100 if sweep == 'loss' else 1) * value:g}" for value in values])
    panels[-1, place].set_xlabel(TEXTS[sweep])
for axes, text in zip(panels[:, 0], SHOWN.values(), strict=True):
    axes.set_ylabel(text)
figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=6)
style.save(figure, "mocc_links", options.out / "figures")
