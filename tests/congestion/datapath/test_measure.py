"""Short runs over the relay, between sockets and between network namespaces, and what is written down of them."""

from pathlib import Path

import pytest
from beds import needs_namespaces, needs_tun

from autobyte.congestion.datapath.measure import Overheard, run_kernel, run_over_relay, run_over_tunnel
from autobyte.congestion.datapath.relay import Hop
from autobyte.congestion.datapath.tcp import TcpPacing
from autobyte.congestion.datapath.tunnel import check_tunnel, tunnel
from autobyte.congestion.link import PacketLink, SteadyPace
from autobyte.congestion.paths import Bottleneck, RateProfile, Route
from autobyte.errors import AutoByteError
from autobyte.testbed import TestbedError

HOP = Hop(1.25e6, 0.01, 100, loss=0.05)


def test_what_counts_is_heard_and_passed_on() -> None:
    heard = Overheard(SteadyPace(900.0), 1.0, 2.0)
    link = PacketLink(Bottleneck(RateProfile.steady(1000.0), 100), [(Route(0.05), heard)])
    link.run(3.0)
    assert heard.acked == 900
    assert heard.round_trip_s == pytest.approx(0.051)
    assert heard.quantile_s(0.5) == heard.quantile_s(0.99) == pytest.approx(0.051, rel=0.01)


def test_a_run_over_the_relay_gets_what_is_sent_but_for_the_losses() -> None:
    run = run_over_relay(HOP, SteadyPace(500.0), seconds=1.0, settled_s=0.3)
    assert run.bytes_per_s == pytest.approx(0.95 * 500 * 1500, rel=0.1)
    assert run.utilisation == pytest.approx(0.57, rel=0.1)
    assert 0.021 < run.round_trip_s < 0.1
    assert run.round_trip_s < run.p99_s * 1.01
    assert 0.01 < run.loss < 0.12
    assert run.cpu_s_per_gbit > 0
    assert 0 <= run.missed < 0.1


@needs_namespaces
@needs_tun
def test_the_kernels_tcp_and_ours_meet_the_same_relay() -> None:
    hop = Hop(1.25e6, 0.01, 20, headers=0)
    ours = run_over_tunnel(hop, SteadyPace(500.0), seconds=0.8, settled_s=0.3)
    assert ours.bytes_per_s == pytest.approx(500 * 1500, rel=0.15)
    kernel = run_kernel(hop, "cubic", seconds=1.2, settled_s=0.6)
    assert 0.8 < kernel.utilisation < 1.1
    assert 0.02 < kernel.round_trip_s < 0.1
    paced = run_kernel(
        hop, "cubic", seconds=1.0, settled_s=0.5, paced=lambda sock: TcpPacing(sock, SteadyPace(600.0), now_s=0.0)
    )
    assert paced.utilisation == pytest.approx(0.72, rel=0.15)
    with pytest.raises(AutoByteError, match="no connection with the kernel's 'renoo' through the relay"):
        run_kernel(hop, "renoo", seconds=1.0, settled_s=0.5)


@needs_namespaces
@needs_tun
def test_a_tunnel_that_cannot_be_made_is_one_line_and_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TestbedError, match="this kernel has no TCP 'renoo'"):
        check_tunnel("renoo")

    def refuse(name: str) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("autobyte.congestion.datapath.tunnel.netlink", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(TestbedError, match="the tunnel's two hosts cannot be made here"), tunnel(HOP):
        raise AssertionError("there is a tunnel")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
