"""`autobyte congestion`: one congestion control for many objectives: trained, judged, adapted, compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autobyte.cli.datapath import seconds_or_dash, send, serve, without_nan
from autobyte.cli.options import JsonOption

if TYPE_CHECKING:
    from autobyte.congestion.evaluate import Served
    from autobyte.congestion.policy import RatePolicy
    from autobyte.errors import AutoByteError

app = typer.Typer(
    help="One congestion control for many objectives (MOCC).\n\n"
    "An objective has weights of throughput, latency and loss that sum to 1. One network sets the sending rate for "
    "any of them. Links are simulated packet by packet; bench, serve and send move real packets, too.\n\n"
    "autobyte congestion bench --rate 50Mbit --delay 25ms --loss 1%",
    no_args_is_help=True,
)

ObjectiveOption = Annotated[
    str, typer.Option("--objective", help="weights, such as throughput=0.8,latency=0.1,loss=0.1")
]
WeightsOption = Annotated[
    Path | None, typer.Option("--weights", help="weights of a network; default: those that come with the package")
]
RangeOption = Annotated[
    str, typer.Option("--range", help="where links are drawn from: paper, paper-test, release, datacenter")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="random seed")]


app.command("serve")(serve)
app.command("send")(send)


@app.command("train")
def train(
    *,
    out: Annotated[Path, typer.Option("--out", help="file for the weights; scores go beside it, as .json")],
    mode: Annotated[
        str, typer.Option("--mode", help="two-phase, mixed, individual (needs --objective), aurora, orca-style")
    ] = "two-phase",
    iterations: Annotated[int, typer.Option("--iterations", help="updates of the network")] = 600,
    links: Annotated[int, typer.Option("--links", help="links that are simulated at the same time")] = 72,
    range_: Annotated[
        list[str] | None, typer.Option("--range", help="where links are drawn from; may be repeated; default: paper")
    ] = None,
    objective: Annotated[str, typer.Option("--objective", help="the only objective, for individual")] = "",
    loss_bound: Annotated[
        str,
        typer.Option(
            "--loss-bound", help="lost packets above this share, such as 5%, cost extra reward; default: no bound"
        ),
    ] = "",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Train a network, and score it on links that it has not seen.

    Run the same command again to continue a training run that was interrupted.

    autobyte congestion train --out mocc.npz
    """
    from autobyte.cli.console import print_json, print_line, progress
    from autobyte.congestion.halfway import discard_half, load_half
    from autobyte.congestion.objectives import parse_objective
    from autobyte.congestion.ranges import parse_loss
    from autobyte.congestion.record import scores
    from autobyte.congestion.stored import save_policy
    from autobyte.congestion.train import OWN_REWARD, Recipe
    from autobyte.congestion.train import train as learn
    from autobyte.errors import InputError
    from autobyte.results import versions

    if out.suffix != ".npz":
        raise InputError(f"--out must end in .npz, got '{out}'; scores go into the .json file of the same name")
    recipe = Recipe(
        mode=mode,
        iterations=iterations,
        links=links,
        seed=seed,
        ranges=tuple(range_ or ["paper"]),
        objective=parse_objective(objective) if objective else None,
        loss_bound=parse_loss(loss_bound) if loss_bound else None,
    )
    keep = out.with_suffix(".half.npz")
    with progress(f"training {mode}") as step:
        policy = learn(recipe, keep=keep, told=lambda done, total, reward: step(done, total, f"reward {reward:.3f}"))
    last = load_half(keep, recipe=repr(recipe))
    about: dict[str, Any] = {
        "what": "simulated",
        "command": f"autobyte congestion train --mode {mode} --iterations {iterations} --links {links} --seed {seed}"
        + "".join(f" --range {name}" for name in range_ or [])
        + (f" --objective {objective}" if objective else "")
        + (f" --loss-bound {loss_bound}" if loss_bound else ""),
        "recipe": recipe.to_json(),
        "versions": versions(),
        "cpu_s": round(last.cpu_s, 1),
        "seconds": round(last.seconds, 1),
        "scores": {"own reward": round(last.reward, 4)} if mode in OWN_REWARD else scores(policy),
    }
    save_policy(policy, out, about=about)
    discard_half(keep)
    if json:
        print_json(about)
        return
    print_line(f"{out}: {out.stat().st_size / 1e3:.0f} KB, {last.cpu_s:.0f} s of CPU time")
    if mode not in OWN_REWARD:
        _print_scores(about["scores"])


@app.command("evaluate")
def evaluate(
    *,
    weights: WeightsOption = None,
    objective: Annotated[
        list[str] | None, typer.Option("--objective", help="weights to judge; may be repeated; default: four of them")
    ] = None,
    range_: RangeOption = "paper-test",
    links: Annotated[int, typer.Option("--links", help="links for each objective")] = 64,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Judge a network on simulated links that it has not seen.

    autobyte congestion evaluate --range paper-test --objective 0.8,0.1,0.1 --objective 0.1,0.8,0.1
    """
    from autobyte.cli.console import print_json
    from autobyte.congestion.evaluate import serve
    from autobyte.congestion.objectives import parse_objective
    from autobyte.congestion.ranges import range_of
    from autobyte.congestion.record import SHOWN, row

    wished = [parse_objective(text) for text in objective] if objective else list(SHOWN)
    _at_least(links, "links")
    served = serve(_policy(weights), wished, range_of(range_).draw, links=links, seed=seed)
    if json:
        print_json({"what": "simulated", "range": range_, "objectives": [row(one) for one in served]})
    else:
        _print_served(served)


@app.command("adapt")
def adapt(
    *,
    objective: ObjectiveOption,
    out: Annotated[Path, typer.Option("--out", help="file for the adapted weights")],
    weights: WeightsOption = None,
    updates: Annotated[int, typer.Option("--updates", help="updates of the network")] = 20,
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="keep old objectives: an old one takes part in every update")
    ] = True,
    range_: RangeOption = "paper",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Adapt a network to a new objective, and show how its reward changes, and that of old objectives.

    Old objectives are the landmarks, a grid of objectives, and those that the network was adapted to before, which
    are in the .json file beside its weights.

    autobyte congestion adapt --objective 0.72,0.17,0.11 --out adapted.npz
    """
    from autobyte.cli.console import print_json, print_table, progress, warn
    from autobyte.congestion.adapt import adapt as learn
    from autobyte.congestion.evaluate import serve
    from autobyte.congestion.objectives import landmarks, parse_objective
    from autobyte.congestion.ranges import range_of
    from autobyte.congestion.stored import adapted_to, digest, save_policy
    from autobyte.errors import InputError
    from autobyte.units import format_percent

    if out.suffix != ".npz":
        raise InputError(f"--out must end in .npz, got '{out}'")
    wish, draw, before = parse_objective(objective), range_of(range_).draw, _policy(weights)
    earlier = () if weights is None else adapted_to(weights)
    if weights is not None and not weights.with_suffix(".json").exists():
        beside = weights.with_suffix(".json")
        warn(f"no {beside}: what {weights} was adapted to before is not among the old objectives")
    pool = [one for one in dict.fromkeys((*landmarks(), *earlier)) if one != wish]
    with progress("adapting") as step:
        after = learn(before, wish, draw, pool=pool, updates=updates, seed=seed, replay=replay, told=step)
    rows = {}
    for name, judged in (("new", [wish]), ("old", pool)):
        rewards = [
            sum(one.reward for one in serve(policy, judged, draw, links=16)) / len(judged)
            for policy in (before, after)
        ]
        rows[name] = {"before": round(rewards[0], 4), "after": round(rewards[1], 4)}
    about = {
        "what": "simulated",
        "objective": list(wish.weights),
        "updates": updates,
        "replay": replay,
        "seed": seed,
        "from": digest(before),
        "pool": len(pool),
        "adapted_to": [list(one.weights) for one in dict.fromkeys((*earlier, wish))],
        "rewards": rows,
    }
    save_policy(after, out, about=about)
    if json:
        print_json(about)
        return
    print_table(
        ("reward", "before", "after", "change"),
        [
            (f"{name} objective{'s' * (name == 'old')}", f"{one['before']:.4f}", f"{one['after']:.4f}",
             format_percent(one["after"] / one["before"] - 1))
            for name, one in rows.items()
        ],
    )  # fmt: skip


@app.command("bench")
def bench(
    *,
    rate: Annotated[str, typer.Option("--rate", help="rate of the bottleneck")] = "50Mbit",
    delay: Annotated[str, typer.Option("--delay", help="one-way delay, without queueing")] = "25ms",
    loss: Annotated[str, typer.Option("--loss", help="share of packets that are lost at random: 1% or 0.01")] = "0",
    queue: Annotated[int, typer.Option("--queue", help="packets that may wait")] = 500,
    algorithms: Annotated[
        str, typer.Option("--algorithms", help="congestion controls to run, one after the other; default: all")
    ] = "",
    objective: Annotated[
        list[str] | None,
        typer.Option("--objective", help="weights, for mocc; may be repeated; default: three of them"),
    ] = None,
    seconds: Annotated[str, typer.Option("--seconds", help="length of a run; its second half counts")] = "16s",
    simulated: Annotated[bool, typer.Option("--simulated", help="simulate only: measure nothing")] = False,
    seed: SeedOption = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="runs of each, with seeds from --seed on")] = 1,
    json: JsonOption = False,
) -> None:
    """Run congestion controls on one link, each alone: simulated, and measured.

    Measured packets travel over UDP through a relay in user space. kernel-cubic and kernel-bbr are the kernel's TCP
    through such a relay, and need root. kernel-mocc is the kernel's TCP at the rate that MOCC tells it, by a BPF
    program; it needs clang and bpftool, too. What cannot be measured is left out, with a note.

    autobyte congestion bench --rate 50Mbit --delay 25ms --loss 1% --json
    """
    from autobyte.cli.console import print_json, print_note, print_table, progress
    from autobyte.congestion.algos import make_control
    from autobyte.congestion.datapath.beside import KERNEL, WISHED, run_beside
    from autobyte.congestion.datapath.measure import Overheard
    from autobyte.congestion.objectives import parse_objective
    from autobyte.congestion.paths import PACKET_BYTES, Bottleneck, RateProfile, Route
    from autobyte.congestion.ranges import parse_loss
    from autobyte.congestion.record import SHOWN
    from autobyte.congestion.sharing import means, share_link
    from autobyte.errors import AutoByteError
    from autobyte.units import parse_rate, parse_seconds

    link = Bottleneck(RateProfile.steady(parse_rate(rate, what="rate") / PACKET_BYTES), queue, parse_loss(loss))
    route, length_s = Route(2 * parse_seconds(delay, what="delay")), parse_seconds(seconds, what="seconds")
    wished = [parse_objective(text) for text in objective] if objective else [SHOWN[0], SHOWN[2], SHOWN[3]]
    names, left_out = _asked_for(algorithms, simulated=simulated)
    runs = [(name, wish) for name in names for wish in (wished if name in WISHED else wished[:1])]
    controls = [
        [Overheard(make_control(name, wish, seed=seed + run), length_s / 2, length_s) for run in range(seeds)]
        if name not in KERNEL
        else []
        for name, wish in runs
    ]
    rows: list[dict[str, Any]] = []
    with progress("simulating" if simulated else "measuring") as step:
        for place, ((name, wish), repeated) in enumerate(zip(runs, controls, strict=True)):
            shares = [
                share_link(link, [(route, one)], seconds=length_s, settled_s=length_s / 2, seed=seed + run)[0]
                for run, one in enumerate(repeated)
            ]
            row: dict[str, Any] = {"algorithm": name} | ({"objective": list(wish.weights)} if name in WISHED else {})
            if shares:
                row |= means(shares) | {"p99_s": sum(one.quantile_s(0.99) for one in repeated) / seeds}
            if not simulated:
                tried = range(seed, seed + seeds)
                try:
                    row |= {"measured": run_beside(link, route, name, wish, seconds=length_s, seeds=tried)}
                except AutoByteError as error:
                    left_out[_called(row)] = error  # what was measured before stays
            if simulated or "measured" in row:
                rows.append(row)
            step(place + 1, len(runs), name)
    if not rows:
        raise next(iter(left_out.values()))
    if json:
        about: dict[str, Any] = {
            "what": "simulated" if simulated else "simulated and measured",
            "rate": rate,
            "delay": delay,
        }
        about |= {"loss": loss, "queue": queue}
        about |= {"seconds": seconds, "seed": seed, "seeds": seeds, "runs": without_nan(rows)}
        print_json(about | ({"left_out": {name: str(error) for name, error in left_out.items()}} if left_out else {}))
        return
    print_table(*_benched(rows, measured=not simulated))
    for name, why in left_out.items():
        print_note(f"{name} is left out: {why}.")


def _asked_for(algorithms: str, *, simulated: bool) -> tuple[list[str], dict[str, "AutoByteError"]]:
    """Names of what is to run, and what is left out because it cannot."""
    from autobyte.congestion.algos import ALGORITHMS
    from autobyte.congestion.datapath.beside import KERNEL, check_kernel
    from autobyte.errors import AutoByteError, InputError

    names = algorithms.split(",") if algorithms else [*ALGORITHMS, *([] if simulated else KERNEL)]
    kernels, left_out = [name for name in names if name in KERNEL], dict[str, AutoByteError]()
    if simulated and kernels:
        raise InputError("the kernel's TCP is not simulated: leave it out of --algorithms, or --simulated")
    for name in kernels:
        try:
            check_kernel(name)
        except AutoByteError as error:
            if algorithms:
                raise
            left_out[name] = error
    return [name for name in names if name not in left_out], left_out


def _called(row: dict[str, Any]) -> str:
    name: str = row["algorithm"]
    return f"{name} ⟨{', '.join(map(str, row['objective']))}⟩" if "objective" in row else name


def _benched(rows: Sequence[dict[str, Any]], *, measured: bool) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Columns and rows of the table; a cell of what is simulated and measured has both, in this order."""
    from autobyte.units import format_percent

    shown: list[Sequence[str]] = []
    for row in rows:
        halves = [row if "bytes_per_s" in row else None, row.get("measured")]
        cells = [_called(row)]
        for key, write in (
            ("utilisation", format_percent),
            ("round_trip_s", seconds_or_dash),
            ("p99_s", seconds_or_dash),
            ("loss", format_percent),
        ):
            texts = [write(half[key]) if half else "–" for half in (halves if measured else halves[:1])]
            cells.append(" | ".join(texts))
        shown.append([*cells, f"{row['measured']['cpu_s_per_gbit']:.1f} s"] if measured else cells)
    columns = ["simulated | measured" if measured else "simulated", "utilisation", "round trip", "99 % below", "loss"]
    return (*columns, "CPU per Gbit") if measured else columns, shown


def _policy(weights: Path | None) -> "RatePolicy":
    from autobyte.congestion.stored import load_policy, shipped

    return shipped() if weights is None else load_policy(weights)


def _at_least(number: int, what: str) -> None:
    from autobyte.errors import InputError

    if number < 1:
        raise InputError(f"{what} must be at least 1, got {number}")


def _print_served(served: "Sequence[Served]") -> None:
    from autobyte.cli.console import print_table
    from autobyte.units import format_percent

    rows = [
        (str(one.objective), f"{one.reward:.4f}", format_percent(one.utilisation), f"{one.latency_ratio:.3f}",
         format_percent(one.loss))
        for one in served
    ]  # fmt: skip
    print_table(("⟨throughput, latency, loss⟩", "reward", "utilisation", "latency ratio", "loss"), rows)


def _print_scores(found: dict[str, Any]) -> None:
    from autobyte.cli.console import print_note, print_table
    from autobyte.units import format_percent

    rows = [
        (f"{name}: {group}", f"{one['reward']:.4f}", f"{one['reward_p5']:.4f}", format_percent(one["loss"]))
        for name, groups in found.items()
        for group, one in groups.items()
        if group != "objectives"
    ]
    print_table(("links: objectives", "reward", "5th percentile", "loss"), rows)
    print_note("Simulated; the last half of 400 monitor intervals, on links that were not trained on.")
