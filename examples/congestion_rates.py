"""Two flows ask MOCC for rates: one wants throughput, one latency; the link is simulated."""

from autobyte.congestion.link import PacketLink, SteadyPace
from autobyte.congestion.objectives import Objective
from autobyte.congestion.paths import Bottleneck, RateProfile, Route
from autobyte.congestion.service import Service

service = Service()
for objective in (Objective(0.8, 0.1, 0.1), Objective(0.1, 0.8, 0.1)):
    flow, pace = service.register(objective), SteadyPace(100.0)
    link = PacketLink(Bottleneck(RateProfile.steady(1000.0), 500), [(Route(0.05), pace)])
    while link.now_s < 20:
        link.run(link.now_s + service.interval_s(flow))
        service.report(flow, seen := link.flows[0].finish(link.now_s))
        pace.packets_per_s = service.rate(flow)
    print(f"{objective}: {seen.acked_per_s:.0f} packets/s, round trip {1e3 * seen.round_trip_s:.0f} ms")
