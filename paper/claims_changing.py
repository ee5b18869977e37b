"""Figures 5 to 7: how fast AutoByte finds the best pair, and what it gains where links and GPUs change."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd
import sheet
from claim import ARCHITECTURES, Cells, Claim, Notes, Numbers, Section, Table, emulated
from jobs import BLOCK_COSTS
from reading import TUNERS, Range, bound_to, by_phase, known, median, percent, phases, span
from style import MODELS, NAMES

CONVERGENCE = "fig05_convergence"
STARTS = (("2,2", 0.126), ("8,3", 0.81))  # a pair, and the gain that the paper has from there
BANDWIDTH, SHARED = "fig06_dynamic_bandwidth", "fig07_shared_resources"
MATTERING = "when_tuning_matters"
REFERENCES = {
    "bayesian": "BO, repaired",
    "released": "ByteScheduler, released",
    "hindsight": "the best that never changes",
}
BESIDE = ("descent", "robust", "hindsight", "all-knowing", "oracle")  # what the tuners' gains are read beside
HEADS = TUNERS | {method: NAMES[method] for method in BESIDE}
ON_LINKS = ("descent", "constant")  # beside the tuners in what was measured
FUSED = {1: "fused", 0: "not fused"}
OURS = ("twin", "metanet")
EMULATED = ("metanet-published", "metanet")  # shown of what was measured on links
FIRST, AS_ABOVE = next(iter(BLOCK_COSTS)), ["as above"] * len(EMULATED)  # on links a block costs what it costs there
RUN = ["block_cost", "fusion", "batch", "architecture", "model", "seed"]  # what names one in a table of phases
COSTS_MS = (0.09, 0.92)  # of a block in the diagram of where tuning matters
PLACES = {"held": "held on the link", "latency": "hidden as latency"}
PICKS = {
    "least": "best of the ties",
    "mean": "mean of the ties",
    "default": "ByteScheduler's default",
    "bayesian-published": "BO, released settings on both knobs",
    "bayesian": "BO, repaired",
    "robust": "BO, robust",
    "optuna": "Optuna",
    "grid": "grid, as far as it gets",
} | TUNERS
MATTERS = 0.06  # the least gain that the paper has in figure 6


def gained(rows: pd.DataFrame, end: str = "end_samples_per_s", **where: Any) -> Range:
    """How much faster than at its start a run ends, median over seeds."""
    runs = sheet.where(rows, **where)
    return ((runs[end] / runs["start_samples_per_s"] - 1).median(),)


def at_start(cost: str, architecture: str, start: str) -> tuple[dict[str, str], str]:
    """A start on an architecture as columns, and in words; what a block costs is in the words alone."""
    return {
        "architecture": architecture,
        "start": start,
    }, f"⟨{start}⟩, {ARCHITECTURES[architecture]}, {BLOCK_COSTS[cost]}"


def gain(cost: str, architecture: str, start: str, published: float) -> Claim:
    """What is gained from a start."""
    where, words = at_start(cost, architecture, start)

    def judge(rows: pd.DataFrame, numbers: Numbers) -> Cells:
        tuners = known(rows, "tuner")
        at = where | {"block_cost": cost}
        gains = [gained(rows, tuner=tuner, **at) for tuner in tuners]
        possible = percent(gained(rows, "best_samples_per_s", tuner=tuners[-1], **at))

        def on_links(tuner: str) -> str:
            measured = numbers[f"{CONVERGENCE}.testbed.summary"]
            there = not measured.empty and bound_to(measured, "tuner", tuner, **where)
            return emulated(measured, lambda rows: gained(rows, tuner=tuner, **where) if there else None)

        return (
            *(f"{percent(each)} of {possible} to be had" for each in gains),
            *(map(on_links, EMULATED) if cost == FIRST else AS_ABOVE),
        )

    return Claim(f"gain from {words}", f"{CONVERGENCE}.summary", judge, percent((published,)))


def predictions(cost: str, architecture: str, start: str) -> Claim:
    """How many predictions it takes from a start."""
    where, words = at_start(cost, architecture, start)

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        runs = sheet.where(rows, block_cost=cost, **where)
        counts = [sheet.where(runs, tuner=tuner)["predictions"] for tuner in known(rows, "tuner")]
        return (
            *(f"{count.median():g} ({count.min()} … {count.max()})" for count in counts),
            *["noise there is as large as 3 %"] * len(EMULATED),
        )

    return Claim(f"predictions until it stays within 3 %, {words}", f"{CONVERGENCE}.summary", judge, "3")


def first_fifty(rows: pd.DataFrame, ends: pd.DataFrame, tuner: str, **where: Any) -> Range | None:
    """Gain over staying at a start, by mean speeds of iterations 10 to 60, searching included; median over seeds."""
    runs = sheet.where(rows, tuner=tuner, **where).query("10 <= iteration < 60")
    if runs.empty:
        return None
    speed = 1 / runs.assign(seconds=1 / runs["samples_per_s"]).groupby("seed")["seconds"].mean()
    stays = sheet.where(ends, tuner=tuner, **where).set_index("seed")
    still = stays["staying_first_fifty" if "staying_first_fifty" in stays else "start_samples_per_s"]
    return ((speed / still - 1).median(),)


def metric(cost: str, architecture: str, start: str) -> Claim:
    """The paper's metric (sec. IV-A): mean speed of the first 50 iterations after 10 of warm-up."""
    where, words = at_start(cost, architecture, start)
    at = where | {"block_cost": cost}

    def judge(ends: pd.DataFrame, numbers: Numbers) -> Cells:
        tuners, name = known(ends, "tuner"), f"{CONVERGENCE}.testbed"
        gains = [first_fifty(numbers[CONVERGENCE], ends, tuner, **at) or () for tuner in tuners]

        def on_links(tuner: str) -> str:
            staying = numbers[f"{name}.summary"]
            return emulated(numbers[name], lambda rows: first_fifty(rows, staying, tuner, **where))

        return (*map(percent, gains), *(map(on_links, EMULATED) if cost == FIRST else AS_ABOVE))

    return Claim(
        f"first 50 iterations after 10, searching included, over {words}", f"{CONVERGENCE}.summary", judge, "not said"
    )


def slow_searches(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Tuners that take more than three predictions in the median from a start, and where they end."""
    slow = []
    for cost, architecture, (start, _) in product(BLOCK_COSTS, ARCHITECTURES, STARTS):
        where, words = at_start(cost, architecture, start)
        for tuner in known(rows, "tuner"):
            runs = sheet.where(rows, block_cost=cost, tuner=tuner, **where)
            if runs["predictions"].median() > 3:
                short = 1 - (runs["end_samples_per_s"] / runs["best_samples_per_s"]).median()
                pairs = "/".join(sorted(runs["end_pair"].unique()))
                slow.append((tuner, f"{TUNERS[tuner]}, from {words}: ends at {pairs}, {percent((short,))} below"))
    return slow


def on_convergence(numbers: Numbers) -> Iterator[str]:
    """Why figure 5 differs."""
    rows = numbers[f"{CONVERGENCE}.summary"]
    tuners = known(rows, "tuner")
    slow = slow_searches(rows)
    behind = span(
        gained(rows, "best_samples_per_s", block_cost=cost, architecture=a, start="8,3", tuner=tuners[-1])[0]
        for cost, a in product(BLOCK_COSTS, ARCHITECTURES)
    )
    yield (
        f"The best is {percent(behind)} faster than ⟨8,3⟩ in our worlds, not 81 %: in the paper's own figure 6 "
        "ResNet50 returns to ⟨8,3⟩ as the best at 10 Gbit/s, so one of the two figures cannot be right."
    )
    yield (
        "A prediction is made after 10 iterations; our tuners make it after 5 while they know little. The paper's "
        "best pair, ⟨1,4⟩, is not the best here (figure 3). A median of 0 predictions means that the start is within "
        "3 % of the best, and that nothing tried later was worse."
    )
    if slow:
        ends = "; ".join(end for _, end in slow)
        yield (
            "These need more than three predictions in the median, or never get there (which counts as one more than "
            f"all predictions of the run): {ends}."
        )
        yield (
            "The reason: the gain that is left is predicted to be too small for a change. The published trigger "
            "needs a predicted gain of 5 %, our meta-network one of 1.25 %, and the twin one of 0.25 %; for the last "
            "two, what a trial could find counts as gain."
        )
    if quick := [TUNERS[tuner] for tuner in tuners if tuner not in dict(slow)]:
        yield (
            "In the median, within three predictions from both starts, on both architectures and at both costs of a "
            f"block: {', '.join(quick)}."
        )
    yield (
        "The first 50 iterations are set beside those of a run that stays; on links, beside iterations 10 to 20 of a "
        "launch that stays. The fastest window in the emulated picture is that of 10 iterations; drawn are 5."
    )
    yield (
        "The optimum in the simulated picture is, in every 5 iterations, the fastest of what any run did then and of "
        "pairs that never change: all that any run had in force, and 16 of the grid, those that are fastest without "
        "jitter. What is to be had, and predictions, are set beside the fastest of these pairs over the whole run."
    )


def adapting(name: str, text: str, reference: str, published: str, *, slow: bool = False, **where: Any) -> Claim:
    """What methods gain over a pair that was found once, in phases after a change; `slow`: in every other phase."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        there = rows[rows["phase"] % 2 == 1] if slow else rows
        return [percent(span(phases(there, method, reference, **where))) for method in columns_of(rows)]

    return Claim(text, f"{name}.phases", judge, published)


def columns_of(rows: pd.DataFrame) -> list[str]:
    """The methods of a table of phases that a line shows."""
    return [method for method in (*TUNERS, *BESIDE) if method in rows]


def on_links(name: str, architecture: str, model: str) -> Claim:
    """What was measured on shaped links; nothing where it was not."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells | None:
        if rows.empty or (cell := sheet.where(rows, architecture=architecture, model=model)).empty:
            return None
        steps = by_phase(cell)
        return [percent(span(phases(steps, method, "bayesian"))) for method in (*TUNERS, *ON_LINKS)]

    return Claim(f"{MODELS[model]}, {ARCHITECTURES[architecture]}", f"{name}.testbed", judge)


def settings(rows: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a block costs, and whether small tensors are fused: in words, and as columns."""
    for cost in BLOCK_COSTS:
        for fusion in sorted(set(rows["fusion"])):
            words = f"{BLOCK_COSTS[cost]}, {'fused' if fusion else 'not fused'}"
            yield words, {"block_cost": cost, "fusion": fusion}


def whole_runs(rows: pd.DataFrame, method: str, reference: str) -> list[float]:
    """Gain of one method over another in every whole run, of each seed."""
    steps = rows.groupby(RUN)[[method, reference]].sum()
    return (steps[reference] / steps[method] - 1).tolist()


def slower(rows: pd.DataFrame) -> str:
    """How often our meta-network is slower than BO, model by model."""
    gained = {model: phases(rows, "metanet", "bayesian", model=model) for model in sorted(set(rows["model"]))}
    counts = (
        f"{sum(g < 0 for g in gains)} of {len(gains)} phases of {MODELS[model]}" for model, gains in gained.items()
    )
    least = min(min(gains) for gains in gained.values())
    return f"Our meta-network is slower than BO in {' and in '.join(counts)}, at worst by {percent((-least,))}."


def drawn(name: str, numbers: Numbers) -> str:
    """Which jobs are in the picture, and where most is gained."""
    rows, cell = numbers[f"{name}.phases"], RUN[:-1]
    shown = numbers[name][cell].drop_duplicates()
    batches, models = (" and ".join(map(str, sorted(set(shown[key])))) for key in ("batch", "model"))
    places = " and ".join(ARCHITECTURES[architecture] for architecture in sorted(set(shown["architecture"])))
    late = rows[rows["phase"] > 0]
    gains = late.assign(gain=late["bayesian"] / late["metanet"] - 1).groupby([*cell, "phase"])["gain"].median()
    cost, fusion, batch, architecture, model, _ = gains.idxmax()
    return (
        f"The picture shows {len(shown)} of {len(rows[cell].drop_duplicates())} jobs: {MODELS[models]} on {places} "
        f"at batch {batches}. Our meta-network gains most over BO, {percent((gains.max(),))}, on {MODELS[model]}, "
        f"batch {batch}, {ARCHITECTURES[architecture]}, {BLOCK_COSTS[cost]}, {FUSED[fusion]}."
    )


def on_adapting(name: str, numbers: Numbers) -> Iterator[str]:
    """Why figures 6 and 7 differ."""
    rows = numbers[f"{name}.phases"]
    ours, possible = phases(rows, "metanet", "bayesian"), phases(rows, "oracle", "bayesian")
    robust, hindsight = phases(rows, "robust", "bayesian"), phases(rows, "hindsight", "bayesian")
    worst = min(phases(rows, "metanet-published", "bayesian"))
    whole = whole_runs(rows, "oracle", "hindsight")
    better = {method: sum(gain > 0 for gain in whole_runs(rows, method, "hindsight")) for method in OURS}
    yield drawn(name, numbers)
    yield (
        "Ranges are over phases of 20 iterations; each value is the median over three seeds. All methods run in the "
        "same world, with the same jitter. The optimum is, in every 5 iterations, the fastest of what any method ran "
        "then, and of 16 pairs for each state of the cluster: those that are fastest in it without jitter, of 304 "
        "and of all that were tried. It pays for no switch. *Best of each phase* is chosen among these pairs, too, "
        "knows every phase in advance, and decides once in each. *Best that never changes* is the fastest of these "
        "pairs over the whole run, in hindsight; a pair that is among the 16 in no state could be faster."
    )
    yield (
        "Over whole runs, the optimum is faster than the best that never changes by "
        f"{percent((sum(whole) / len(whole),))} on average, and by {percent((max(whole),))} at most. Our "
        f"meta-network is faster than it in {better['metanet']} of {len(whole)} runs, the twin in {better['twin']}. "
        "So gains over BO come mostly from how ties are broken."
    )
    yield slower(rows)
    yield (
        "*BO, robust* takes, of the pairs that BO saw within 2 % of its fastest, the one with the fewest bytes in "
        "flight. It does not adapt: what it gains comes from breaking ties."
    )
    most = {"BO, robust": robust, "best that never changes": hindsight, "our meta-network": ours, "optimum": possible}
    yield (
        "Gain over BO, over all phases and settings, in the median and at most: "
        + "; ".join(
            f"{name} {percent((median(gains),))} and {percent((max(gains),))}" for name, gains in most.items()
        )
        + "."
    )
    yield (
        "A phase has two windows. A tuner loses where the first still runs the pair for the phase before, and where "
        f"it tries a worse pair. The meta-network as published loses {percent((-worst,))} in its worst phase."
    )


def on_starts(numbers: Numbers) -> Iterator[str]:
    """What methods lose on links before anything changes, though they run the pair that BO found."""
    rows = numbers[f"{BANDWIDTH}.testbed"]
    lost = []
    for architecture, place in ARCHITECTURES.items() if not rows.empty else ():
        first = sheet.where(rows, architecture=architecture, model="resnet50").query("iteration < 20")
        pair = first["seed"].map(sheet.where(first, method="bayesian").groupby("seed")["pair"].first())
        steps = first.assign(same=first["pair"] == pair, seconds=1 / first["samples_per_s"]).groupby("method")
        took = steps["seconds"].mean()[steps["same"].all()]
        names = NAMES | HEADS
        gains = {names[method]: took["bayesian"] / s - 1 for method, s in took.items() if method != "bayesian"}
        lost.append(f"{place}: {', '.join(f'{method} {percent((gain,))}' for method, gain in gains.items())}")
    if lost:
        yield (
            "Launches that tune start more slowly. In iterations 0 to 20, on ResNet50, methods that run exactly the "
            f"pair that BO found gain over it, on {'; on '.join(lost)}. Launches whose pair stays have trained for "
            "some steps before iteration 0, until plans are made from measured times; launches that tune begin with "
            "their first step. The table leaves these iterations out."
        )


def on_crossing(numbers: Numbers) -> Iterator[str]:
    """What methods gain on shaped links where communication comes to take about as long as compute."""
    rows = numbers[f"{BANDWIDTH}.crossing.testbed"]
    for model in dict.fromkeys(rows["model"]) if not rows.empty else ():
        steps = by_phase(cell := sheet.where(rows, model=model))
        slow = steps[steps["phase"] % 2 == 1]
        names = TUNERS | {method: NAMES[method] for method in ("robust", *ON_LINKS)}
        gains = {names[method]: span(slow["bayesian"] / slow[method] - 1) for method in names}
        days = sorted(set(cell["date"]))
        carried = " and ".join(dict.fromkeys(sheet.where(cell, method="bayesian")["pair"]))
        yield (
            f"Emulated, links of 1 and 0.5 Gbit/s, {MODELS[model]} on servers, compute of 0.15 s, sizes scaled, "
            f"{'one launch' if (count := steps['seed'].nunique()) == 1 else f'{count} launches'} of "
            f"{' to '.join(dict.fromkeys((days[0], days[-1])))}: gain over BO at 0.5 Gbit/s, over phases and "
            f"launches: {'; '.join(f'{name} {percent(gain)}' for name, gain in gains.items())}. BO "
            f"carried {carried}: with few bytes in flight, a slower link leaves little to gain."
        )


def on_testbed(numbers: Numbers) -> Iterator[str]:
    """What is to be said of figure 6 on shaped links."""
    yield from on_starts(numbers)
    yield from on_crossing(numbers)


def where_it_matters(numbers: Numbers) -> Iterator[str]:
    """In which cells adapting gains what the paper says."""
    rows = numbers[f"{BANDWIDTH}.phases"]
    slow = rows[rows["phase"] % 2 == 1]
    lasting = []
    for words, where in settings(rows):
        found = []
        for batch, model, architecture in product(sorted(set(rows["batch"])), MODELS, ARCHITECTURES):
            cell = where | {"batch": batch, "model": model, "architecture": architecture}
            if sheet.where(slow, **cell).empty or (least := min(_gains(slow, cell))) < MATTERS:
                continue
            place = f"{MODELS[model]}, batch {batch}, {ARCHITECTURES[architecture]}"
            found.append(f"{place} ({percent((least,))})")
            lasting += phases(slow, "hindsight", "bayesian", **cell)
        yield (
            f"{words}: the better of the twin and our meta-network, chosen for each phase, gains at least "
            f"{100 * MATTERS:g} % over BO in every phase at 3 Gbit/s in {'; '.join(found) or 'no cell'}."
        )
    if lasting:
        yield (
            f"In these cells and phases the best pair that never changes gains {percent(span(lasting))} over BO. So "
            "what BO lacks there is not mainly that it stands still: many pairs are equally fast before the change, "
            "and a search cannot see which of them will last."
        )


def _gains(rows: pd.DataFrame, where: dict[str, Any]) -> list[float]:
    """What the better of our two tuners gains over BO, phase by phase."""
    return [max(both) for both in zip(*(phases(rows, method, "bayesian", **where) for method in OURS), strict=True)]


def ratios(numbers: Numbers) -> Iterator[str]:
    """How long communication takes beside compute."""
    rows = sheet.where(numbers[f"{BANDWIDTH}.phases"], architecture="ps", block_cost="usbyte", fusion=1, seed=0)
    table = rows.groupby(["model", "batch", "phase"])["ratio"].first().unstack("phase")
    for model, of_model in table.groupby(level="model"):
        cells = [f"{ratio[0]:.2g} and {ratio[1]:.2g} at batch {place[1]}" for place, ratio in of_model.iterrows()]
        yield (
            f"{MODELS[str(model)]}: the time for a step's bytes, by the time of its compute, at 10 and at 3 Gbit/s: "
            f"{', '.join(cells)}."
        )


def on_changing(numbers: Numbers) -> Iterator[str]:
    """What the paper says of both figures."""
    yield (
        "For changing resources the paper's section IV-B says 18.2 … 39.3 %, and its IV-D, where the experiments "
        "are, 6.4 … 23 % and 8.8 … 19.2 %."
    )
    for name, figure in ((BANDWIDTH, "figure 6"), (SHARED, "figure 7")):
        rows = numbers[f"{name}.phases"]
        best = {TUNERS[tuner]: max(phases(rows, tuner, "bayesian")) for tuner in TUNERS}
        ours = ", ".join(f"{text} {percent((gain,))}" for text, gain in best.items())
        yield f"The most that each gains over BO in a phase of {figure}, over all settings: {ours}."
    yield (
        "The paper's conclusion says 33.2 % less training time. Its 33.2 % are more speed elsewhere, which is 24.9 % "
        f"less time; the most in a phase of figure 6 is {percent((1 - 1 / (1 + fastest(numbers)),))} here."
    )
    yield (
        "Each job has an equal share of links and GPUs, so communication / compute stays as it was when others join. "
        "Steps get longer, so a block's fixed cost matters less. That is why little can be gained in most settings. "
        f"{most_possible(numbers[f'{SHARED}.phases'])}"
    )
    yield (
        "In the paper's text, the pair becomes ⟨4,2⟩ when a job joins, because that ‘better fit the low bandwidth’. "
        "It becomes ⟨2,1⟩ when another joins and bandwidth is lower still."
    )


def most_possible(rows: pd.DataFrame) -> str:
    """In which setting of figure 7 the optimum gains most over BO, and what our tuners gain there."""
    places = rows[[key for key in RUN if key != "seed"]].drop_duplicates().to_dict("records")
    place = max(places, key=lambda place: max(phases(rows, "oracle", "bayesian", **place)))
    gains = {name: percent(span(phases(rows, name, "bayesian", **place))) for name in ("oracle", *OURS)}
    words = f"{MODELS[place['model']]}, batch {place['batch']}, {ARCHITECTURES[place['architecture']]}"
    words += f", {BLOCK_COSTS[place['block_cost']]}, {FUSED[place['fusion']]}"
    return (
        f"Most is to be had on {words}: the optimum gains {gains['oracle']} over BO, the twin {gains['twin']} and "
        f"our meta-network {gains['metanet']}."
    )


def fastest(numbers: Numbers) -> float:
    """The most that one of AutoByte's tuners gains over BO in a phase of figure 6."""
    return max(max(phases(numbers[f"{BANDWIDTH}.phases"], tuner, "bayesian")) for tuner in TUNERS)


def changing(name: str, title: str, published: Range, *more: Notes) -> Section:
    """Figure 6 or 7."""
    slow = name == BANDWIDTH
    costs = list(BLOCK_COSTS)
    phase = ", phases at 3 Gbit/s" if slow else ""

    def columns(numbers: Numbers) -> Iterator[str]:
        yield from ("gain", "paper", *(HEADS[method] for method in columns_of(numbers[f"{name}.phases"])))

    over_bo = [
        adapting(
            name,
            f"over BO, repaired; ResNet50, batch {batch}, {BLOCK_COSTS[cost]}, {FUSED[fusion]}{phase}",
            "bayesian",
            percent(published),
            slow=slow,
            model="resnet50",
            batch=batch,
            block_cost=cost,
            fusion=fusion,
        )
        for cost in costs
        for fusion in FUSED
        for batch in (32, 64, 128)
    ]
    over_others = [
        adapting(
            name,
            f"over {text}; all models and batches, {BLOCK_COSTS[cost]}, {FUSED[fusion]}, all phases",
            reference,
            "not compared",
            block_cost=cost,
            fusion=fusion,
        )
        for reference, text in REFERENCES.items()
        for cost in costs
        for fusion in FUSED
    ]
    emulated = Table(
        lambda _: ("gain over BO, emulated", *TUNERS.values(), *(NAMES[method] for method in ON_LINKS)),
        [on_links(name, *place) for place in (("ps", "resnet50"), ("ps", "vgg16"), ("allreduce", "resnet50"))],
        ("", "Emulated: one launch of each row, four hosts, batch 32, fused; recorded on 22 November 2026.", ""),
    )
    parts = (Table(columns, [*over_bo, *over_others]), Notes(lambda numbers: on_adapting(name, numbers)), *more)
    return Section(title, name, (*parts, emulated, Notes(on_testbed)) if slow else parts)


def of_convergence(numbers: Numbers) -> Iterator[str]:
    """The heads of figure 5."""
    tuners = known(numbers[f"{CONVERGENCE}.summary"], "tuner")
    yield from ("claim", "paper", *(f"simulated, {TUNERS[name]}" for name in tuners))
    yield from (f"emulated, {TUNERS[name]}" for name in EMULATED)


FIGURE_5 = Section(
    "Figure 5: convergence from two starts",
    CONVERGENCE,
    (
        Table(
            of_convergence,
            [
                claim
                for cost, architecture, (start, published) in product(BLOCK_COSTS, ARCHITECTURES, STARTS)
                for claim in (
                    gain(cost, architecture, start, published),
                    predictions(cost, architecture, start),
                    metric(cost, architecture, start),
                )
            ],
        ),
        Notes(on_convergence),
    ),
)
FIGURE_6 = changing(
    BANDWIDTH,
    "Figure 6: 10 and 3 Gbit/s, every 20 iterations",
    (0.064, 0.23),
    Notes(ratios),
    Notes(where_it_matters),
)
FIGURE_7 = changing(
    SHARED,
    "Figure 7: jobs join at iterations 20 and 40",
    (0.088, 0.192),
    Notes(on_changing),
)


def most_lost(cost_ms: float, where: str, fusion: int, architecture: str) -> Claim:
    """The change after which tied pairs lose most."""
    words = f"{cost_ms:g} ms, {PLACES[where]}, {FUSED[fusion]}, {ARCHITECTURES[architecture]}"

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        cells = sheet.where(rows, cost_ms=cost_ms, where=where, fusion=fusion, architecture=architecture)
        cells = cells[cells["before"] != cells["after"]]
        worst = cells.loc[cells["mean"].idxmax()]
        changes = kinds(cells)
        return (
            f"{worst['before']:g} → {worst['after']:g}",
            f"{worst['tied']}",
            percent((worst["mean"],)),
            percent((cells["least"].max(),)),
            *(percent((changes[kind]["mean"].median(),)) for kind in ("up", "down", "other")),
        )

    return Claim(words, MATTERING, judge)


def kinds(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Changes by whether communication / compute stays, comes to 1 or more from below, comes below 1, or neither."""
    before, after = cells["before"], cells["after"]
    stays, up, down = before == after, (before < 1) & (after >= 1), (before >= 1) & (after < 1)
    masks = {"none": stays, "up": up, "down": down, "other": ~(stays | up | down)}
    return {kind: cells[mask] for kind, mask in masks.items()}


def carried(who: str) -> Claim:
    """What one's pick loses, on average and at most."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        return [f"{percent((lost[who].mean(),))}, {percent((lost[who].max(),))}" for lost in kinds(rows).values()]

    return Claim(PICKS[who], MATTERING, judge)


def on_mattering(numbers: Numbers) -> Iterator[str]:
    """What the diagram says."""
    rows = numbers[MATTERING]
    up = kinds(rows)["up"]
    yield (
        "ResNet50, batch 64, on 8 workers. Links change so that communication / compute goes from one of five "
        "ratios to another; compute stays, so the diagram says nothing of changes of GPUs. A block costs 0.09 or "
        "0.92 ms besides its bytes, for all its hops together. NCCL's start-up, 0.26 ms held, lies between; "
        "US-Byte's is 0.92 ms held and 0.42 ms of latency on all-reduce. Tied are those of 304 pairs that are "
        "within 2 % of the fastest before the change. Losses are against the best of the 304 after it, without noise."
    )
    yield (
        "Every tuner searches 16 windows before the change, with jitter, with one seed, and its pick stays. Tuners "
        "that go on after the change, as the twin and our meta-network do, lose this until they have decided anew. "
        "Where nothing changes, a pick loses what its search did not find. *Grid* is as far as it gets in 16 windows."
    )
    averages = {who: up[who].mean() for who in PICKS if who not in ("least", "mean")}
    low, high = (pick(averages, key=averages.__getitem__) for pick in (min, max))
    yield (
        f"After changes from below 1 to 1 and above, the best tied pair loses {percent((up['least'].mean(),))} on "
        f"average, and what was picked {percent((averages[low],))} ({PICKS[low]}) to {percent((averages[high],))} "
        f"({PICKS[high]}): no search chooses among ties as if it knew the change."
    )
    averages = {
        (ms, where): sheet.where(up, cost_ms=ms, where=where)["mean"].mean() for ms in COSTS_MS for where in PLACES
    }
    yield (
        "Mean loss of the tied pairs after such changes: "
        + ", ".join(f"{percent((lost,))} at {ms:g} ms, {PLACES[where]}" for (ms, where), lost in averages.items())
        + "."
    )
    changed = rows[rows["before"] != rows["after"]]
    means = [
        part[["mean", "metanet"]].mean() for part in (changed[changed["after"] == 1], changed[changed["after"] != 1])
    ]
    at_one, elsewhere = ({who: percent((lost[who],)) for who in lost.index} for lost in means)
    yield (
        "Most is lost where communication takes as long as compute after the change, wherever it came from. There "
        f"the tied pairs lose {at_one['mean']} on average, and after all other changes {elsewhere['mean']}; our "
        f"meta-network's picks lose {at_one['metanet']} and {elsewhere['metanet']}."
    )
    robust = changed.loc[changed["robust"].idxmax()]
    yield (
        f"*BO, robust* loses {percent((robust['robust'],))} at worst, after {robust['before']:g} → "
        f"{robust['after']:g} with {robust['cost_ms']:g} ms {PLACES[robust['where']]}: a rule that keeps the fewest "
        "bytes in flight breaks ties well in one direction only."
    )
    yield (
        "*The best tied pair* is what a search could keep that broke ties by looking ahead. Where it loses about "
        "nothing, one pair serves before and after the change. What tuning at run time gains is then that nobody has "
        "to know the change in advance."
    )
    yield "`autobyte compare --model … --scenario …` says in a line where a job of your own lies."


MATTERS_MOST = Section(
    "Where tuning at run time matters",
    MATTERING,
    (
        Table(
            lambda _: (
                "lost by what was picked before, simulated: mean, at most",
                "nothing changes",
                "from below 1 to 1 and above",
                "from 1 and above to below",
                "all other changes",
            ),
            [carried(who) for who in PICKS],
        ),
        Table(
            lambda _: (
                "tied pairs, simulated",
                "the change after which they lose most",
                "tied pairs",
                "mean loss of the tied pairs, at most",
                "loss of the best tied pair, at most",
                "median of the mean loss, from below 1 to 1 and above",
                "from 1 and above to below",
                "of all other changes",
            ),
            [
                most_lost(ms, where, fusion, a)
                for ms in COSTS_MS
                for where in PLACES
                for fusion in FUSED
                for a in ARCHITECTURES
            ],
            above=("", "Setting by setting, what pairs lose that were tied before a change:", ""),
        ),
        Notes(on_mattering),
    ),
)
SECTIONS = (FIGURE_5, FIGURE_6, FIGURE_7, MATTERS_MOST)
