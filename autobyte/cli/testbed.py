"""`autobyte testbed`: a command on hosts with links of given rates, on this machine."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autobyte.cli.options import JsonOption

if TYPE_CHECKING:
    from autobyte.testbed import Finished, Testbed
    from autobyte.testbed.validity import LinkCheck

app = typer.Typer(
    help="Emulate hosts on slow links, on this machine.\n\n"
    "Run a training script there as if on a slow network. Hosts are Linux network namespaces: TCP and processes are "
    "real, and the kernel holds the rates. Needs root and the extra `testbed`. Touches nothing outside the "
    "namespaces, and leaves nothing behind.\n\n"
    "autobyte testbed run --hosts 4 --rate 1Gbit -- python train.py",
    no_args_is_help=True,
)

HostsOption = Annotated[int, typer.Option("--hosts", help="number of hosts")]
RateOption = Annotated[
    str, typer.Option("--rate", help="nominal rate of every link in both directions; TCP carries 95.6 % of it")
]
SlowOption = Annotated[
    list[str] | None,
    typer.Option("--slow", help="another rate for one host: HOST:RATE or HOST:UP:DOWN; may be repeated"),
]
DelayOption = Annotated[
    str, typer.Option("--delay", help="delay of every packet, one way; needs netem in the kernel, as --loss does")
]
LossOption = Annotated[str, typer.Option("--loss", help="share of packets that are lost: 0.1% or 0.001")]


class Check(StrEnum):
    """What comes of links that do not hold their rates."""

    off = "off"
    warn = "warn"
    refuse = "refuse"


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    *,
    command: Annotated[
        list[str], typer.Argument(help="command for every host; `python` is the one that runs autobyte")
    ],
    hosts: HostsOption = 4,
    rate: RateOption = "1Gbit",
    per_host: Annotated[int, typer.Option("--per-host", help="ranks on each host")] = 1,
    slow: SlowOption = None,
    delay: DelayOption = "0s",
    loss: LossOption = "0",
    background: Annotated[
        str,
        typer.Option(
            "--background", help="rate of TCP traffic from each host to the next meanwhile, such as 100Mbit"
        ),
    ] = "",
    scenario: Annotated[
        Path | None,
        typer.Option("--scenario", help="a TOML file with changes of rates, as for `autobyte simulate`"),
    ] = None,
    iteration: Annotated[
        str, typer.Option("--iteration", help="how long one iteration of the scenario lasts")
    ] = "1s",
    check: Annotated[
        Check, typer.Option("--check", help="measure links first (3 s), and what to do if one is off by 2 %")
    ] = Check.warn,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="all ranks share this machine's GPU, NCCL over the hosts' links; needs MPS")
    ] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", help="end all ranks after this time, such as 10min; 0 is never")
    ] = "0",
    json: JsonOption = False,
) -> int:
    """Run a command on every host, as torchrun would.

    Ranks get the environment that torchrun gives them. A script that runs under torchrun runs here unchanged. Each
    line of output begins with its rank. If a rank fails, the others are ended. The exit status is the command's own:
    0, or that of the first rank that failed. It is 124 after --timeout, and 2 if there is no testbed.

    \b
    autobyte testbed run --hosts 4 --rate 1Gbit -- python train.py
    autobyte testbed run --hosts 4 --rate 1Gbit --slow 2:250Mbit --background 100Mbit -- python train.py
    autobyte testbed run --hosts 4 --rate 1Gbit --scenario examples/scenarios/quarter.toml -- python train.py
    autobyte testbed run --hosts 4 --rate 10Gbit --gpu -- python train.py
    """
    from autobyte.cli.console import print_json, print_line, warn
    from autobyte.testbed import LaunchError, SharedGpu
    from autobyte.testbed.changes import follow
    from autobyte.testbed.load import MOST_CORES, OtherLoad
    from autobyte.units import parse_seconds

    changes, iteration_s = _scenario(scenario), parse_seconds(iteration, what="iteration")
    timeout_s = parse_seconds(timeout, what="timeout") or None
    with SharedGpu() if gpu else nullcontext() as shared, _testbed(hosts, rate, slow, delay, loss) as testbed:
        links = checked(testbed, check)
        with _background(testbed, background), OtherLoad() as others:
            began_s = time.monotonic()
            meanwhile = follow(testbed, changes, iteration_s=iteration_s) if changes is not None else None
            show = None if json else lambda rank, line: print_line(f"[{rank}] {line}")
            status, complaint = 0, ""
            try:
                with testbed.start(command, per_host=per_host, show=show, gpu=shared) as launch:
                    finished = launch.wait(timeout_s=timeout_s, meanwhile=meanwhile)
            except LaunchError as error:
                finished, status, complaint = error.finished, error.status, str(error)
            took_s = time.monotonic() - began_s
    if json:
        print_json(_summary(links, finished, status, took_s, others.cores))
    elif others.cores > MOST_CORES and took_s >= 1:  # the kernel counts in hundredths of a second
        warn(f"others kept {others.cores:.1f} cores of this machine busy meanwhile: times are not to be trusted")
    if complaint:
        warn(complaint)
    return status


@app.command("check")
def check_links(
    *,
    hosts: HostsOption = 4,
    rate: RateOption = "1Gbit",
    slow: SlowOption = None,
    delay: DelayOption = "0s",
    loss: LossOption = "0",
    json: JsonOption = False,
) -> int:
    """Measure what the links carry, and compare it with their rates.

    Uses real TCP, first up, then down. The exit status is 1 if a link is not within 2 % of what TCP can carry at its
    rate, or varies by more than 3 % from one tenth of a second to the next; on links below 100 Mbit/s a little more.

    autobyte testbed check --hosts 4 --rate 3Gbit
    """
    from autobyte.cli.console import print_json, print_table
    from autobyte.testbed.validity import measure_links
    from autobyte.units import format_rate

    with _testbed(hosts, rate, slow, delay, loss) as testbed:
        links = measure_links(testbed)
    if json:
        print_json({"what": "measured", "links": [link.to_json() for link in links]})
    else:
        rows = [
            (
                f"host {link.host} {link.direction}",
                format_rate(link.rate),
                format_rate(link.goodput),
                f"{100 * link.share:.1f} %",
                f"{100 * link.variation:.1f} %",
                "yes" if link.sound else "NO",
            )
            for link in links
        ]
        print_table(("link", "rate", "TCP carries", "of what it can", "variation", "holds"), rows)
    return 0 if all(link.sound for link in links) else 1


@contextmanager
def _testbed(hosts: int, rate: str, slow: Sequence[str] | None, delay: str, loss: str) -> Iterator["Testbed"]:
    """The testbed that options describe."""
    from autobyte.testbed import Testbed
    from autobyte.units import parse_rate, parse_seconds

    others = [_slow(text) for text in slow or []]
    shaped = Testbed(
        hosts, rate=parse_rate(rate, what="rate"), delay_s=parse_seconds(delay, what="delay"), loss=_share(loss)
    )
    with shaped as testbed:
        for host, up, down in others:
            testbed.shape(host, up=up, down=down)
        yield testbed


def _slow(text: str) -> tuple[int, float, float]:
    """A host, and its rates up and down."""
    from autobyte.errors import InputError
    from autobyte.units import parse_rate

    host, *rates = text.split(":")
    if not host.isdecimal() or len(rates) not in (1, 2):
        raise InputError(f"cannot read --slow '{text}'; write it like 2:250Mbit, or 2:250Mbit:1Gbit for up and down")
    up, *down = [parse_rate(one, what="rate") for one in rates]
    return int(host), up, down[0] if down else up


def _share(text: str) -> float:
    from autobyte.errors import InputError

    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise InputError(f"cannot read loss '{text}'; write it like 0.1% or 0.001") from None


def _scenario(path: Path | None) -> Any:
    from autobyte.scenario import Scenario

    return None if path is None else Scenario.load(path)


def _background(testbed: "Testbed", rate: str) -> AbstractContextManager[Any]:
    from autobyte.testbed.flows import Flows, ring
    from autobyte.units import parse_rate

    return Flows(testbed, ring(testbed), rate=parse_rate(rate, what="background")) if rate else nullcontext()


def checked(testbed: "Testbed", check: Check) -> list["LinkCheck"]:
    """What the links carry; one that does not hold its rate is told, or is an error."""
    from autobyte.cli.console import warn
    from autobyte.testbed import TestbedError
    from autobyte.testbed.validity import measure_links, require_sound

    links = measure_links(testbed) if check is not Check.off else []
    try:
        require_sound(links)
    except TestbedError as error:
        if check is Check.refuse:
            raise
        warn(str(error))
    return links


def _summary(
    links: Sequence["LinkCheck"], finished: Sequence["Finished"], status: int, took_s: float, others: float
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "what": "measured on emulated links",
        "status": status,
        "took_s": took_s,
        "others_cores": others,
        "links": [link.to_json() for link in links],
        "ranks": [asdict(one) for one in finished],
    }
