"""MOCC: its abstract's claims, what objectives get, what its parts bring, and how it shares a link."""

import statistics
from collections.abc import Iterable, Sequence

import pandas as pd
import sheet
from claim import Cells, Claim, Notes, Numbers, Section, Table

OBJECTIVES, ADAPTATION, FORGETTING = "mocc_objectives", "mocc_adaptation", "mocc_forgetting"
PREFERENCES, ABLATIONS, BOUNDED = "mocc_preferences", "mocc_ablations", "mocc_bounded"
SHARING, ALONE = "mocc_sharing", "mocc_alone"
SHOWN = ("⟨0.8, 0.1, 0.1⟩", "⟨0.6, 0.3, 0.1⟩", "⟨0.4, 0.5, 0.1⟩", "⟨0.1, 0.8, 0.1⟩", "⟨0.1, 0.1, 0.8⟩")
LINKS = {"paper": "links for training", "paper-test": "links for tests"}
LOOK = 2 * 64 * 128  # monitor intervals between two looks at a reward: two updates of an adaptation


def with_error(values: Iterable[float], *, scale: float = 1.0, unit: str = "", digits: int = 1) -> str:
    """The mean and its standard error, such as '14.2 ± 1.3 %'."""
    numbers = [scale * value for value in values]
    error = statistics.stdev(numbers) / len(numbers) ** 0.5 if len(numbers) > 1 else 0.0
    return f"{statistics.fmean(numbers):.{digits}f} ± {error:.{digits}f}{unit}".replace("-", "−")


def percent(values: Iterable[float]) -> str:
    """0.064, 0.066 as '6.5 ± 0.1 %'."""
    return with_error(values, scale=100, unit=" %")


def speedups(rows: pd.DataFrame) -> list[float]:
    """How many times as long a learner from scratch takes, for each seed: all its intervals over all of MOCC's.

    Where MOCC needs no update it counts with one look at its reward, two updates.
    """
    counted = rows.assign(mocc=rows["mocc_intervals"].clip(lower=LOOK)).groupby("seed")
    totals = counted[["mocc", "alone_intervals"]].sum()
    return (totals["alone_intervals"] / totals["mocc"]).tolist()


def faster(rows: pd.DataFrame, _: Numbers) -> Cells:
    """How many times as fast."""
    return [with_error(speedups(rows), unit="x")]


def needed_none(rows: pd.DataFrame, _: Numbers) -> Cells:
    """Where the network served the objective before it was adapted."""
    none, never = (rows["mocc_intervals"] == 0).sum(), (rows["mocc_reached"] == 0).sum()
    behind = f"; {never} did not get there" if never else ""
    return [f"{none} of {len(rows)}{behind}"]


def how_long(rows: pd.DataFrame, _: Numbers) -> Cells:
    """What an adaptation takes, and what a learner from scratch does."""
    ours, alone = (1e-3 * rows[f"{who}_intervals"].mean() for who in ("mocc", "alone"))
    late = (rows["alone_reached"] == 0).sum()
    behind = f" at least, for {late} of {len(rows)} did not get there" if late else ""
    return [f"{ours:.0f} thousand monitor intervals; from scratch {alone:.0f} thousand{behind}"]


def kept(replay: int) -> Claim:
    """What old objectives lose while three new ones are learned."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        of_seeds = sheet.where(rows, replay=replay).groupby("seed")
        lost = of_seeds["old"].last() / of_seeds["old"].first() - 1
        return [f"{percent(lost)}; the landmark that loses most {percent(of_seeds['old_least'].last() - 1)}"]

    text = "the old objectives' reward changes by, with replay" if replay else "the same without replay"
    return Claim(text, FORGETTING, judge, "kept" if replay else "–")


def share(kind: str, of: str, text: str) -> Claim:
    """How much of a reference the objectives of a kind get."""

    def judge(rows: pd.DataFrame, _: Numbers) -> Cells:
        judged = sheet.where(rows, kind=kind).dropna(subset=[of])
        shares = (judged["reward"] / judged[of]).groupby(judged["seed"])
        return [str(judged["objective"].nunique()), percent(shares.mean()), percent(shares.quantile(0.05))]

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


def heads(*columns: str) -> Sequence[str]:
    return columns


PAIRS = [pair(name, name) for name in ("cubic", "bbr", "vegas", "copa", "allegro", "vivace", "aurora")]
PAIRS += [pair("mocc", other, wish) for other in ("mocc", "cubic", "bbr") for wish in (SHOWN[0], SHOWN[3])]


def notes(numbers: Numbers) -> Iterable[str]:
    """What explains the differences."""
    alone = numbers[ALONE].set_index(["objective", "seed"])
    changed = []
    for start in ("scratch", "mocc"):
        learned = sheet.where(alone, start=start)
        last = learned["intervals"].max()
        ends = [sheet.where(learned, intervals=intervals)["reward"] for intervals in (last, last // 2)]
        changed.append(percent(ends[0] / ends[1] - 1))
    known = numbers[OBJECTIVES].dropna(subset=["specialist"])
    yield (
        "A specialist is a network that learned one objective: from scratch, or from MOCC's network, whichever is "
        f"better. The second half of the updates changed rewards by {changed[0]} from scratch, and by {changed[1]} "
        "from MOCC's network. Two landmarks and six unseen objectives have three specialists of either kind each; "
        "those of all would take more than half an hour. So all objectives are compared with an upper bound, too: "
        "the best rate that never changes, chosen for each link by somebody who knows the link. Specialists get "
        f"{100 * (known['specialist'] / known['bound']).mean():.1f} % of it."
    )
    yield (
        "The paper's 288 s pass on a live network; our links are simulated, so the ratio compares monitor intervals, "
        "without those of MOCC's training beforehand. Rewards are looked at every two updates. MOCC counts with two "
        "where it needs none, and a learner from scratch with its whole training where it does not get there. So the "
        "ratio is a lower bound."
    )
    yield (
        "Old objectives are the 36 landmarks, while three new ones near the corners of the simplex are learned in "
        "turn, 12 updates each. Each joins the pool that replay draws from."
    )
    empty = sheet.where(numbers[PREFERENCES], objective=SHOWN[3], range="paper")["utilisation"]
    yield (
        f"At {SHOWN[3]} an empty link costs a tenth of the reward at most. Of three networks one uses "
        f"{100 * empty.min():.0f} % of it on average and another {100 * empty.max():.0f} %, hence the large error."
    )
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
        lambda _: heads("claim", "paper", "simulated"),
        (
            Claim("a new objective, faster than a learner from scratch", ADAPTATION, faster, "14.2x"),
            Claim("an adaptation takes, on average", ADAPTATION, how_long, "288 s"),
            Claim("unseen objectives that had 99 % of the reward before", ADAPTATION, needed_none, "–"),
            kept(1),
            kept(0),
        ),
        ("![a new objective, and old ones](figures/mocc_adaptation.png)", ""),
    ),
    Table(
        lambda _: heads("reward, of that of", "objectives", "mean", "5th percentile"),
        (
            share("unseen", "specialist", "specialists, for unseen objectives"),
            share("landmark", "specialist", "specialists, for landmarks"),
            share("unseen", "bound", "the upper bound, for unseen objectives"),
            share("landmark", "bound", "the upper bound, for landmarks"),
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
        lambda _: heads("trained, at equal steps", "reward, of the bound", "5th percentile", "loss"),
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
    Notes(notes),
)


def is_made(part: Table | Notes) -> bool:
    """Whether `make mocc` has made the numbers of a table."""
    files = {claim.file for claim in part.claims} if isinstance(part, Table) else set()
    return all((sheet.HERE / "data" / f"{file}.csv").exists() for file in files)


MOCC = Section("MOCC: one congestion control for many objectives", OBJECTIVES, tuple(filter(is_made, PARTS)))
SECTIONS = (MOCC,)
