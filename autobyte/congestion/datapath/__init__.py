"""Real datapaths: packets that travel, at the rate that a congestion control sets.

`wire` is what travels, `outgoing` and `incoming` decide at the two ends, `transfer` moves it over UDP. A `relay` is a
bottleneck in user space, between sockets or, in a `tunnel`, between two network namespaces. `tcp` reads the kernel's
counts and paces its connections. `measure` runs congestion controls over a relay.
"""
