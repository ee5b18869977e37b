"""`autobyte congestion serve` and `send`: bytes between two hosts, at the rate that a congestion control sets."""

import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from autobyte.cli.options import JsonOption
from autobyte.errors import InputError

PORT = 7070


def serve(
    *,
    bind: Annotated[
        str, typer.Option("--bind", help="address and port to listen at; whoever reaches it can send")
    ] = f"0.0.0.0:{PORT}",
    out: Annotated[Path | None, typer.Option("--out", help="file for what arrives; default: it is dropped")] = None,
    wait: Annotated[str, typer.Option("--wait", help="longest wait for a sender")] = "60s",
    json: JsonOption = False,
) -> None:
    """Take in one transfer that `autobyte congestion send` begins.

    It takes what the first sender brings, whoever that is, and nothing is encrypted.

    autobyte congestion serve --bind 0.0.0.0:7070 --out data.bin
    """
    from dataclasses import asdict

    from autobyte.cli.console import print_json, print_line
    from autobyte.congestion.datapath.transfer import receive
    from autobyte.units import format_bytes, format_rate, format_seconds, parse_seconds

    own, wait_s = parse_address(bind), parse_seconds(wait, what="wait")
    if out is not None and out.exists():
        raise InputError(f"{out} exists: take another --out, or remove it")
    with _stored(out) as store, _bound(own) as sock:
        got = receive(sock, store, wait_s=wait_s)
    if json:
        print_json(asdict(got))
        return
    per_s = got.nbytes / max(1e-9, got.seconds)
    print_line(
        f"{format_bytes(got.nbytes)} in {format_seconds(got.seconds)}, {format_rate(per_s)}; "
        f"{got.twice} packets came twice; {format_seconds(got.cpu_s)} of CPU"
    )


def send(
    to: Annotated[str, typer.Argument(help="address and port where `serve` listens, such as 10.0.0.2:7070")],
    *,
    file: Annotated[Path | None, typer.Option("--file", help="file to send; default: zeros")] = None,
    seconds: Annotated[str, typer.Option("--seconds", help="for how long zeros are sent")] = "10s",
    algorithm: Annotated[str, typer.Option("--algorithm", help="congestion control that sets the rate")] = "mocc",
    objective: Annotated[
        str, typer.Option("--objective", help="for mocc: weights, such as throughput=0.8,latency=0.1,loss=0.1")
    ] = "0.8,0.1,0.1",
    json: JsonOption = False,
) -> None:
    """Send a file, or zeros for some seconds, over UDP to `autobyte congestion serve`.

    autobyte congestion send 10.0.0.2:7070 --file data.bin --algorithm mocc --objective 0.1,0.8,0.1
    """
    from autobyte.cli.console import print_json, print_table
    from autobyte.congestion.algos import make_control
    from autobyte.congestion.datapath.measure import Overheard
    from autobyte.congestion.datapath.transfer import send as transmit
    from autobyte.congestion.objectives import parse_objective
    from autobyte.units import format_bytes, format_percent, format_rate, format_seconds, parse_seconds

    peer, length_s = parse_address(to), parse_seconds(seconds, what="seconds")
    heard = Overheard(make_control(algorithm, parse_objective(objective)), 0.0, float("inf"))
    with _chunks(file, length_s) as source, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sent = transmit(sock, peer, source, heard)
    about: dict[str, Any] = {
        "what": "measured",
        "algorithm": algorithm,
        "nbytes": sent.nbytes,
        "seconds": sent.seconds,
        "goodput_bytes_per_s": sent.nbytes / max(1e-9, sent.seconds),
        "packets": sent.packets,
        "lost": sent.lost,
        "twice": sent.twice,
        "round_trip_s": heard.round_trip_s,
        "p99_s": heard.quantile_s(0.99),
        "cpu_s": sent.cpu_s,
    }
    if json:
        print_json(without_nan(about))
        return
    print_table(
        ("sent", "goodput", "round trip", "99th percentile", "lost", "CPU"),
        [
            (
                format_bytes(sent.nbytes),
                format_rate(about["goodput_bytes_per_s"]),
                seconds_or_dash(about["round_trip_s"]),
                seconds_or_dash(about["p99_s"]),
                format_percent(sent.lost / max(1, sent.packets)),
                format_seconds(sent.cpu_s),
            )
        ],
    )


def parse_address(text: str) -> tuple[str, int]:
    """Read an address and a port.

    >>> parse_address("10.0.0.2:7070")
    ('10.0.0.2', 7070)

    Raises:
        InputError: it has not both.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"cannot read address '{text}'; write it like 10.0.0.2:{PORT}")
    return host, int(port)


def without_nan(data: Any) -> Any:
    """What JSON can hold: None stands for the mean of nothing."""
    if isinstance(data, dict):
        return {name: without_nan(value) for name, value in data.items()}
    if isinstance(data, list):
        return [without_nan(value) for value in data]
    return None if isinstance(data, float) and math.isnan(data) else data


def seconds_or_dash(seconds: float) -> str:
    """A time as tables show it; a dash for the mean of nothing."""
    from autobyte.units import format_seconds

    return "–" if math.isnan(seconds) else format_seconds(seconds)


@contextmanager
def _bound(own: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(own)
        except OSError as error:
            raise InputError(f"cannot listen at {own[0]}:{own[1]}: {error.strerror}") from error
        yield sock


@contextmanager
def _stored(out: Path | None) -> Iterator[Callable[[int, memoryview], None]]:
    """Where chunks go: to their places in a file that is there when all have come, or nowhere."""
    from autobyte.congestion.datapath.wire import CHUNK
    from autobyte.drafts import draft_of

    if out is None:
        yield lambda chunk, body: None
        return
    with draft_of(out) as draft, draft.open("wb") as file:

        def store(chunk: int, body: memoryview) -> None:
            file.seek(chunk * CHUNK)
            file.write(body)

        yield store


@contextmanager
def _chunks(path: Path | None, length_s: float) -> Iterator[Callable[[int, float], memoryview | None]]:
    """A file, chunk by chunk, or zeros for some seconds."""
    from autobyte.congestion.datapath.wire import CHUNK
    from autobyte.errors import FileError

    if path is None:
        zeros = memoryview(bytes(CHUNK))
        yield lambda chunk, now_s: zeros if now_s < length_s else None
        return
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise FileError(f"no file {path}") from None
    except IsADirectoryError:
        raise FileError(f"{path} is a folder; send a file") from None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None

    def read(chunk: int, now_s: float) -> memoryview | None:  # in order, each once: what is lost is kept elsewhere
        try:
            return memoryview(file.read(CHUNK)) or None
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror}") from None

    with file:
        yield read
