"""MOCC: its abstract's claims, what objectives get, what its parts bring, and how it shares a link."""

import json
import statistics
from collections.abc import Iterable, Sequence

import pandas as pd
import sheet
from claim import Cells, Claim, Notes, Numbers, Section, Table

from autobyte.congestion.stored import SHIPPED, digest, shipped

OBJECTIVES, ADAPTATION, FORGETTING = "mocc_objectives", "mocc_adaptation", "mocc_forgetting"
PAIRED = "mocc_paired"
PREFERENCES, ABLATIONS, BOUNDED = "mocc_preferences", "mocc_ablations", "mocc_bounded"
SHARING, ALONE, TUNED = "mocc_sharing", "mocc_alone", "mocc_tuners"
SHOWN = ("⟨0.8, 0.1, 0.1⟩", "⟨0.6, 0.3, 0.1⟩", "⟨0.4, 0.5, 0.1⟩", "⟨0.1, 0.8, 0.1⟩", "⟨0.1, 0.1, 0.8⟩")
LINKS = {"paper": "links for training", "paper-test": "links for tests"}
LOOK = 2 * 64 * 128  # monitor intervals between two looks at a reward: eight updates of an adaptation
HOW = {1: "with", 0: "without"}
STEADY = "the best steady rate"


def with_error(values: Iterable[float], *, scale: float = 1.0, unit: str = "", digits: int = 1) -> str:
    """The mean and its standard error, such as '14.2 ± 1.3 %'."""
    numbers = [scale * value for value in values]
    error = statistics.stdev(numbers) / len(numbers) ** 0.5 if len(numbers) > 1 else 0.0
    return f"{statistics.fmean(numbers):.{digits}f} ± {error:.{digits}f}{unit}".replace("-", "−")


def percent(values: Iterable[float], digits: int = 1) -> str:
    """0.064, 0.066 as '6.5 ± 0.1 %'."""
    return with_error(values, scale=100, unit=" %", digits=digits)


def trained_intervals() -> int:
    """Monitor intervals of the training of the network that ships."""
    intervals: int = json.loads((SHIPPED / "mocc.json").read_text())["recipe"]["environment_steps"]
    return intervals


def ends(alone: pd.DataFrame, start: str) -> "pd.Series[float]":
    """Rewards in the end of networks that were trained for one objective, by objective: means over seeds."""
    learned = sheet.where(alone, start=start)
    return sheet.where(learned, intervals=learned["intervals"].max()).groupby("objective")["reward"].mean()


def times_faster(rows: pd.DataFrame, known: str) -> "pd.Series[float]":
    """Intervals from scratch over those of an adaptation, seed by seed; who needed no update counts with a look's."""
    ours = rows[f"{known}_intervals"].clip(lower=LOOK).groupby(rows["seed"]).sum()
    alone: pd.Series[float] = rows["alone_intervals"].groupby(rows["seed"]).sum()
    return alone / ours


def adaptation(known: str, kind: str, text: str) -> Claim:
    """How long a network adapts until it has 99 % of a specialist's reward, beside a learner from scratch."""

    def judge(every: pd.DataFrame, _: Numbers) -> Cells:
        rows = sheet.where(every, kind=kind)
        count, ours, alone = len(rows), rows[f"{known}_intervals"], rows["alone_intervals"]
        reached = [f"{int(rows[f'{who}_reached'].sum())} of {count}" for who in (known, "alone")]
        return [
            f"{100 * (rows[f'{known}_at_first'] / rows['specialist']).mean():.1f} %",
            f"{int((ours == 0).sum())} of {count}",
            f"{1e-3 * ours.mean():.0f}, {reached[0]}",
            f"{1e-3 * alone.mean():.0f}, {reached[1]}",
            with_error(times_faster(rows, known), unit="x"),
        ]

    return Claim(text, ADAPTATION, judge)


def before(_: pd.DataFrame, __: Numbers) -> Cells:
    """What MOCC's training took."""
    return [f"{trained_intervals():,} monitor intervals"]


def kept(replay: int) -> Claim:
    """What old objectives lose while the network is trained on three new ones."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        of_seeds = sheet.where(rows, replay=replay).groupby("seed")
        lost = of_seeds["old"].last() / of_seeds["old"].first() - 1
        return [f"{percent(lost, 2)}; the landmark that loses most {percent(of_seeds['old_least'].last() - 1, 2)}"]

    text = f"training on three new objectives, {HOW[replay]} replay, changes old objectives' reward by"
    return Claim(text, FORGETTING, judge, "kept" if replay else "–")


def turn_of(rows: pd.DataFrame) -> int:
    """Updates for each of three new objectives."""
    return int(rows["updates"].max()) // 3


def gained(replay: int) -> Claim:
    """What each of three new objectives gets by its own updates."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        at = sheet.where(rows, replay=replay).pivot(index="updates", columns="seed")
        updates = turn_of(rows)
        turns = [(updates * turn, at[f"new_{turn + 1}"]) for turn in range(3)]
        changes = pd.concat([rewards.loc[first + updates] / rewards.loc[first] - 1 for first, rewards in turns])
        return [percent(changes.groupby("seed").mean(), 2)]

    return Claim(f"the same, {HOW[replay]} replay: each new objective's, in its turn, by", FORGETTING, judge, "–")


def share(kind: str, of: str, text: str) -> Claim:
    """How much of a reference the objectives of a kind get; 'scratch' are networks trained for one objective so."""

    def judge(rows: pd.DataFrame, numbers: Numbers) -> Cells:
        judged = sheet.where(rows, kind=kind)
        if of == "scratch":
            judged = judged.assign(scratch=judged["objective"].map(ends(numbers[ALONE], of)))
        judged = judged.dropna(subset=[of])
        every = judged["reward"] / judged[of]
        shares = every.groupby(judged["seed"])
        told = (percent(shares.mean()), percent(shares.quantile(0.05)), f"{100 * every.min():.1f} %")
        return [str(judged["objective"].nunique()), *told]

    return Claim(text, OBJECTIVES, judge)


def preference(objective: str, links: str) -> Claim:
    """What an objective gets."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        got = sheet.where(rows, objective=objective, range=links)
        return [
            percent(got["utilisation"]),
            with_error(got["latency_ratio"], digits=3),
            percent(got["loss"]),
            with_error(got["reward"], digits=3),
        ]

    return Claim(f"{objective}, {LINKS[links]}", PREFERENCES, judge)


def difference(links: str) -> Claim:
    """What weights of throughput and of latency change, in networks of the same seed."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        columns = ["utilisation", "latency_ratio", "loss"]
        there, back = (
            sheet.where(rows, objective=objective, range=links).set_index("seed")[columns]
            for objective in (SHOWN[0], SHOWN[3])
        )
        apart = there - back
        return [
            percent(apart["utilisation"]),
            with_error(apart["latency_ratio"], digits=3),
            percent(apart["loss"]),
            "–",
        ]

    return Claim(f"the first less ⟨0.1, 0.8, 0.1⟩, {LINKS[links]}", PREFERENCES, judge)


DIFFERENT = ("utilisation", "in standard errors", "latency ratio", "in standard errors")


def paired(seed: int, links: str) -> Claim:
    """What weights change in one network, link by link."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        row = sheet.where(rows, seed=seed, range=links).iloc[0]
        cells: list[str] = []
        for what, scale, digits, unit in (("utilisation", 100, 1, " %"), ("latency", 1, 3, "")):
            mean, error = row[what], row[f"{what}_error"]
            cells.append(f"{scale * mean:.{digits}f} ± {scale * error:.{digits}f}{unit}".replace("-", "−"))
            cells.append(f"{abs(mean) / error:.1f}")
        return cells

    return Claim(f"network {seed + 1}, {LINKS[links]}", PAIRED, judge)


def variant(name: str) -> Claim:
    """A variant of the training."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        got = sheet.where(rows, variant=name)
        return [percent(got["share"]), percent(got["share_p5"]), percent(got["loss"])]

    return Claim(name, ABLATIONS, judge)


def individual(rows: pd.DataFrame, numbers: Numbers) -> Cells:
    """Networks that learn an objective each, when they have had about a 36th of the intervals."""
    bounds = numbers[OBJECTIVES].query("kind == 'unseen'").groupby("objective")["bound"].first()
    early = rows[(rows["intervals"] == LOOK) & (rows["start"] == "scratch") & rows["objective"].isin(bounds.index)]
    shares = (early["reward"] / early["objective"].map(bounds)).groupby(early["seed"])
    return [percent(shares.mean()), percent(shares.quantile(0.05)), "–"]


def bounded(objective: str) -> Claim:
    """What a bound on loss changes."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        cells = []
        for name in ("weighted sum", "loss bounded (ours)"):
            got = sheet.where(rows, objective=objective, **{"reward of training": name})
            cells += [percent(got["utilisation"]), with_error(got["latency_ratio"], digits=3), percent(got["loss"])]
        return cells

    return Claim(objective, BOUNDED, judge)


def pair(first: str, second: str, objective: str = "") -> Claim:
    """Two flows on one link."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        row = sheet.where(rows, first=first, second=second, objective=objective).iloc[0]
        both = ((row["jain"], row["jain_error"], 3, 1, ""), (row["part_of_first"], row["part_error"], 1, 100, " %"))
        told = [
            f"{scale * mean:.{digits}f} ± {scale * error:.{digits}f}{unit}"
            for mean, error, digits, scale, unit in both
        ]
        return [*told, f"{100 * row['loss']:.1f} %"]

    names = {"mocc": "MOCC", "cubic": "CUBIC", "bbr": "BBR"}
    named = [names.get(name, name.title()) for name in (first, second)]
    text = f"{named[0]}{' ' * bool(objective)}{objective} and {named[1]}"
    return Claim(text, SHARING, judge)


LED = ("default", "random", "descent", "twin")


def led(weights: str) -> Claim:
    """What tuners score under weights that lead them, and under the same weights if speed leads them."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        cells = []
        for tuner in LED:
            scores = [
                with_error(sheet.where(rows, weights=weights, tuner=tuner, led_by=who)["score"], digits=3)
                for who in ("weights", "speed")
            ]
            cells.append(scores[0] if tuner == "default" else f"{scores[0]}; {scores[1]}")
        return [*cells, f"{sheet.where(rows, weights=weights)['best'].max():.3f}"]

    return Claim(weights, TUNED, judge)


def tuned() -> Table:
    """Preferences for tuners, one line for each weights."""
    weights = dict.fromkeys(sheet.read(TUNED, sheet.HERE)["weights"]) if made(TUNED) else {}
    return Table(
        lambda _: heads("⟨throughput, latency, cost⟩", *LED, "best, found for nothing"),
        tuple(map(led, weights)),
        (
            "",
            "Tuners of a training, led by weights and scored by them; behind the semicolon: led by speed alone "
            "(`paper/mocc_tuners.py`).",
            "",
        ),
    )


def made(file: str) -> bool:
    """Whether there are numbers."""
    return (sheet.HERE / "data" / f"{file}.csv").exists() and (file != ADAPTATION or adapts())


def adapts() -> bool:
    """Whether there are numbers of two networks that adapt: an earlier version had one."""
    return "known_3_intervals" in sheet.read(ADAPTATION, sheet.HERE)


def heads(*columns: str) -> Sequence[str]:
    return columns


PAIRS = [pair(name, name) for name in ("cubic", "bbr", "vegas", "copa", "allegro", "vivace", "aurora")]
PAIRS += [pair("mocc", other, wish) for other in ("mocc", "cubic", "bbr") for wish in (SHOWN[0], SHOWN[3])]


def on_references(numbers: Numbers) -> Iterable[str]:
    """What the networks for one objective are, and what is counted."""
    alone, changed, length = numbers[ALONE], [], {}
    for start in ("scratch", "mocc"):
        learned = sheet.where(alone, start=start).set_index(["objective", "seed"])
        last = length[start] = learned["intervals"].max()
        late, half = (sheet.where(learned, intervals=intervals)["reward"] for intervals in (last, last // 2))
        changed.append(percent((late / half - 1).groupby("seed").mean()))
    further, scratch = ends(alone, "mocc"), ends(alone, "scratch")
    unseen = alone["objective"].nunique() - 2
    yield (
        f"Two landmarks and {unseen} unseen objectives have *specialists*, {alone['seed'].nunique()} of either kind: "
        f"networks trained from scratch for {length['scratch']:,} monitor intervals, and MOCC's network, trained "
        f"further for {length['mocc']:,}. The better kind counts, in the mean over seeds: that is the second for "
        f"{(further > scratch).sum()} of {len(further)}. The second half of the updates changed rewards by "
        f"{changed[0]} from scratch, and by {changed[1]} from MOCC's network."
    )
    if not adapts():
        return
    counted = numbers[ADAPTATION][["known_36_intervals", "known_3_intervals"]].to_numpy().max()
    yield (
        "The paper adapts on a live network, in 288 s; here are simulated monitor intervals, with rewards looked at "
        f"after every {LOOK:,} of them. Who needs no update counts with {LOOK:,} in the ratio, and who does not get "
        f"there with all {counted:,}. Where no update is needed, MOCC's training has done the work: it had "
        f"{trained_intervals() / length['scratch']:.0f} times as many intervals as the learner from scratch. The "
        f"training on 3 landmarks had {trained_intervals() / 8 / length['scratch']:.1f} times as many."
    )


def on_empty_links(numbers: Numbers) -> Iterable[str]:
    """Where the reward lets a link stay empty, if anywhere."""
    empty = sheet.where(numbers[PREFERENCES], objective=SHOWN[3], range="paper")["utilisation"]
    unseen = sheet.where(numbers[OBJECTIVES], kind="unseen")
    used = unseen.groupby("objective")["utilisation"].agg(["min", "max"])
    used = used[used["max"] < 0.5].sort_values("max")
    if used.empty and empty.min() > 0.9:
        return
    text = (
        "An empty link costs little where latency has most of the weight. "
        f"At {SHOWN[3]} one network uses {100 * empty.min():.0f} % of it on average and another "
        f"{100 * empty.max():.0f} %, hence the large error."
    )
    if used.empty:
        yield text
        return
    named = " and ".join(
        f"{100 * row['min']:.1f} to {100 * row['max']:.1f} % at {objective}" for objective, row in used.iterrows()
    )
    there = unseen[unseen["objective"].isin(used.index)]
    yield (
        f"{text} At {len(used)} of the {unseen['objective'].nunique()} unseen objectives all networks, also the one "
        f"that ships, leave most of it empty: they use {named}. The reward there is at least "
        f"{100 * (there['reward'] / there['bound']).min():.1f} % of that of {STEADY}, and "
        f"{100 * (there['reward'] / there['specialist']).mean():.1f} % of specialists' on average. So the weights do "
        "not want the link empty: the training stops there, and training for that objective alone goes on."
    )


def is_of_what_ships(objectives: pd.DataFrame) -> bool:
    """Whether the first network is the one that ships now: rows of an earlier version do not say."""
    return "network" in objectives and digest(shipped()) in set(sheet.where(objectives, seed=0)["network"])


def notes(numbers: Numbers) -> Iterable[str]:
    """What explains the differences."""
    ships = is_of_what_ships(numbers[OBJECTIVES])
    if not ships:
        yield (
            "**Adaptation, forgetting, rewards and objectives are those of networks that were trained as before.** "
            "None of them is the one that ships now, which is better. `make mocc` makes these tables again."
        )
    seeds = numbers[OBJECTIVES]["seed"].nunique()
    flows = "; where flows share a link, of as many runs" if not numbers[SHARING].empty else ""
    first = ", of which the first is the one that ships" * ships
    yield f"± is the standard error of the mean of {seeds} networks{first}{flows}."
    yield (
        "Where two objectives are compared on the same links, ± is the standard error over "
        f"{numbers[PAIRED]['links'].max():.0f} links of what one gets more than the other: both meet the same links, "
        "losses and first rates, so only differences link by link tell how sure the mean difference is."
    )
    yield from on_references(numbers)
    yield (
        f"*{STEADY.capitalize()}* never changes. It is chosen for each link and objective, with knowledge of the "
        "link. It is no proven bound: a rate that changes might get more."
    )
    yield (
        "Old objectives are the 36 landmarks. The network is trained on three new ones near the corners of the "
        f"simplex in turn, {turn_of(numbers[FORGETTING])} updates each; each joins the pool that replay draws from."
    )
    yield from on_empty_links(numbers)
    if not numbers[ABLATIONS].empty:
        yield (
            "The ablations have an eighth of the updates of the network that ships. ‘Individual’ are networks of one "
            "objective each, from scratch, after about as many intervals as one of 36 landmarks has in the others."
        )
    if not numbers[BOUNDED].empty:
        yield (
            "The weighted sum tolerates loss where queues are short, as on the release's links. The bound on loss is "
            "ours: what exceeds 5 % over the last twenty intervals or so costs ten times its share."
        )


PARTS: tuple[Table | Notes, ...] = (
    Table(
        lambda _: heads(
            "adapting to an unseen objective: which network, which objectives",
            "reward before, of specialists'",
            "no update was needed",
            "thousand intervals to 99 % of it, and how many got there",
            "from scratch",
            "times faster (paper: 14.2)",
        ),
        tuple(
            adaptation(known, kind, f"{who}; {kind}")
            for known, who in (("known_36", "MOCC's, 36 landmarks"), ("known_3", "3 landmarks"))
            for kind in ("drawn first", "most weight on latency")
        ),
        ("",),
    ),
    Table(
        lambda _: heads("claim", "paper", "simulated"),
        (
            Claim("training of MOCC's network before that", FORGETTING, before, "–"),
            *(claim(replay) for replay in (1, 0) for claim in (kept, gained)),
        ),
        ("", "![a new objective, and old ones](figures/mocc_adaptation.png)", ""),
    ),
    Table(
        lambda _: heads("reward, of that of", "objectives", "mean", "5th percentile", "least of all"),
        tuple(
            share(kind, of, f"{text}; {kind} objectives" if kind == "unseen" else f"{text}; landmarks")
            for of, text in (
                ("specialist", "specialists"),
                ("scratch", "a network trained for one objective from scratch"),
                ("bound", STEADY),
            )
            for kind in ("unseen", "landmark")
        ),
        ("",),
    ),
    Table(
        lambda _: heads("objective", "utilisation", "latency ratio", "loss", "reward"),
        (
            *(preference(objective, links) for links in LINKS for objective in SHOWN),
            *(difference(links) for links in LINKS),
        ),
        ("",),
    ),
    Table(
        lambda _: heads("⟨0.8, 0.1, 0.1⟩ less ⟨0.1, 0.8, 0.1⟩, on the same links", *DIFFERENT),
        tuple(paired(seed, links) for links in LINKS for seed in range(3)),
        ("",),
    ),
    Table(
        lambda _: heads("trained, at equal steps", "reward, of the best steady rate's", "5th percentile", "loss"),
        (
            *map(variant, ("two-phase", "mixed", "mixed, 10 landmarks", "mixed, 6 landmarks")),
            *map(variant, ("mixed, 3 landmarks", "two-phase, plain concatenation")),
            Claim("individual", ALONE, individual),
        ),
        ("",),
    ),
    Table(
        lambda _: heads(
            "on the release's links",
            "utilisation",
            "latency ratio",
            "loss",
            "utilisation, loss bounded (ours)",
            "latency ratio, bounded",
            "loss, bounded",
        ),
        tuple(bounded(objective) for objective in SHOWN),
        ("",),
    ),
    Table(
        lambda _: heads("flows on one link", "Jain's index", "share of the first", "loss"),
        PAIRS,
        ("",),
    ),
    tuned(),
    Notes(notes),
)


def is_made(part: Table | Notes) -> bool:
    """Whether `make mocc` has made the numbers of a table."""
    files = {claim.file for claim in part.claims} if isinstance(part, Table) else set()
    return all(map(made, files))


MOCC = Section("MOCC: one congestion control for many objectives", OBJECTIVES, tuple(filter(is_made, PARTS)))
SECTIONS = (MOCC,)
