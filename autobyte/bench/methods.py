"""Ways to train a model on several ranks: without communication, with what DDP offers, and with AutoByte."""

import copy
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import autobyte.torch as ab
from autobyte.bench.networks import Network
from autobyte.config import Config
from autobyte.exchange.arguments import AUTO, BYTESCHEDULER

BUCKETS_MIB = (1, 4, 25, 100)
LISTS_MIB = ((1, 4, 25), (100, 25, 4))  # small buckets first, or last; the last size stays
TIMEOUT = timedelta(seconds=30)  # of a collective whose peers died
HOST_MEMORY, SERVERS = "allreduce", "ps"  # engines that move gradients through host memory

HOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "bf16": default_hooks.bf16_compress_hook,
    "fp16": default_hooks.fp16_compress_hook,
}


@dataclass(frozen=True)
class Method:
    """One way to train, as records name it.

    Args:
        name: unlike any other.
        scheduler: `compute` is training without communication.
        wire_dtype: what gradients travel as; None as they are.
        arguments: of DDP's constructor.
        engine: AutoByte's.
        policy, tuner: AutoByte's; a tuner has `windows` windows of ten steps.
        config: that stays, as JSON; None is the default, or what policy or tuner find.
    """

    name: str
    scheduler: Literal["compute", "ddp", "autobyte"]
    wire_dtype: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    engine: str = ""
    policy: str = BYTESCHEDULER
    tuner: str | None = None
    windows: int = 8
    config: Mapping[str, Any] | None = None

    @property
    def searches(self) -> bool:
        """Whether it takes some windows until it knows its config."""
        return self.config is None and (self.tuner is not None or self.policy == AUTO)

    def settled(self, config: Mapping[str, Any] | None) -> "Method":
        """The same with what a search has found."""
        if config is None:
            return self
        found = {"policy": config.get("policy", BYTESCHEDULER), "tuner": None, "config": config}
        return Method(**asdict(self) | found)

    def to_json(self) -> dict[str, Any]:
        """What records keep of it."""
        kept: dict[str, Any] = {"scheduler": self.scheduler, "wire_dtype": self.wire_dtype}
        if self.scheduler == "ddp":
            kept["arguments"] = dict(self.arguments)
        elif self.scheduler == "autobyte":
            kept |= {"engine": self.engine, "policy": self.policy, "tuner": self.tuner}
        return kept


COMPUTE = Method("compute", "compute")


def methods(
    *, engine: str, tuners: Sequence[str], windows: int, wire_dtypes: Sequence[str | None], servers: bool
) -> list[Method]:
    """What is measured, in this order; `offered` adds to it what DDP has beside its buckets.

    Args:
        engine: of AutoByte, but for servers and host memory.
        tuners: that search a config.
        windows: of ten steps, that each tuner has.
        wire_dtypes: of gradients on the wire.
        servers: whether gradients also go through parameter servers and host memory.
    """
    chosen = [COMPUTE]
    for wire in wire_dtypes:
        suffix = f", {wire}" if wire else ""
        chosen.append(Method(f"DDP default{suffix}", "ddp", wire))
        chosen.append(Method(f"AutoByte{suffix}", "autobyte", wire, engine=engine))
        chosen += [Method(f"DDP {mib} MiB{suffix}", "ddp", wire, {"bucket_cap_mb": mib}) for mib in BUCKETS_MIB]
        if wire is None:
            either = AUTO if engine == "nccl" else engine  # who names nccl keeps to it
            chosen.append(Method("AutoByte auto", "autobyte", engine=either, policy=AUTO))
        chosen += [
            Method(f"AutoByte {tuner}{suffix}", "autobyte", wire, engine=engine, tuner=tuner, windows=windows)
            for tuner in tuners
        ]
        if wire is None and servers:
            chosen.append(Method("AutoByte over host memory", "autobyte", engine=HOST_MEMORY))
            chosen.append(Method("AutoByte servers", "autobyte", engine=SERVERS))
    return chosen


def offered(best: Method, *, has_buffers: bool) -> list[Method]:
    """What the installed DDP has beside bucket sizes, each tried on DDP at its best bucket.

    Args:
        best: DDP at its best bucket.
        has_buffers: whether the model has buffers, which DDP sends before every forward pass.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    silent = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, dict[str, Any]] = {
        "copies batched": {"batched_grad_copy": True},
        "gradients in buckets": {"gradient_as_bucket_view": True},
        "static graph": {"static_graph": True},
        **({"buffers not sent": {silent: False}} if has_buffers else {}),
    }
    methods = [
        Method(f"{best.name}, {what}", "ddp", best.wire_dtype, {**best.arguments, **more})
        for what, more in options.items()
        if more.keys() <= known.keys()
    ]
    if "bucket_cap_mb_list" in known:
        suffix = f", {best.wire_dtype}" if best.wire_dtype else ""
        methods += [
            Method(
                f"DDP {', '.join(map(str, sizes))} MiB{suffix}",
                "ddp",
                best.wire_dtype,
                {"bucket_cap_mb_list": [*sizes]},
            )
            for sizes in LISTS_MIB
        ]
    return methods


class TimedStep:
    """A step of training that can be done again and again; what the host spends on it is kept.

    The current stream is waited for after forward and at the end, under every method alike: under MPS launch queues
    are short, a rank that runs ahead fills its own, and then all ranks hang.

    Args:
        network: inputs and loss.
        model: a copy of the network's, or what wraps it.
        optimizer: of its parameters.
    """

    def __init__(self, network: Network, model: nn.Module, optimizer: Any) -> None:
        self.passes = network.passes(model)
        self._optimizer = optimizer
        self._device = network.device
        self.host_s = 0.0  # of the latest step, without those two waits

    def __call__(self) -> None:
        """Do a step."""
        self._run(lambda: finish(self._device))
        finish(self._device)

    def enqueue(self) -> None:
        """Do a step without waiting; the launch queue must have room for it."""
        self._run(lambda: None)

    def _run(self, between: Callable[[], None]) -> None:
        began = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self.passes.forward()
        self.host_s = time.perf_counter() - began
        between()
        began = time.perf_counter()
        self.passes.backward(loss)
        self._optimizer.step()
        self.host_s += time.perf_counter() - began


def finish(device: torch.device) -> None:
    """Wait for what the current stream has been given."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


@contextmanager
def training(network: Network, method: Method) -> Iterator[tuple[TimedStep, ab.DistributedOptimizer | None]]:
    """A step of the model under a method, and AutoByte's optimizer if it is one of AutoByte's. Collective.

    Another copy of the model is trained each time: no other method has hooks on it. Afterwards its memory is free.
    """
    model = copy.deepcopy(network.model)
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    try:
        if method.scheduler == "compute":
            yield TimedStep(network, model, inner), None
        elif method.scheduler == "ddp":
            wrapped = DistributedDataParallel(model, **method.arguments)
            if method.wire_dtype:
                compress(wrapped, method.wire_dtype)
            yield TimedStep(network, wrapped, inner), None
            del wrapped
        else:
            optimizer = ab.DistributedOptimizer(
                inner,
                model,
                policy=method.policy,
                config=Config.from_json(dict(method.config)) if method.config is not None else None,
                tuner=method.tuner,
                budget=method.windows if method.tuner else None,
                keep=None,
                engine=method.engine,
                wire_dtype=method.wire_dtype,
                timeout=TIMEOUT,
            )
            try:
                yield TimedStep(network, model, optimizer), optimizer
            finally:
                optimizer.close()
    finally:
        for parameter in model.parameters():
            parameter.grad = None
            parameter.data = parameter.data.new_empty(0)


def compress(wrapped: DistributedDataParallel, wire_dtype: str) -> None:
    """Let DDP's gradients travel as `bf16` or `fp16`."""
    hook = HOOKS[wire_dtype]
    # torch refuses its own bf16 hook on gloo, by name alone
    wrapped.register_comm_hook(dist.group.WORLD, lambda state, bucket: hook(state, bucket))  # noqa: PLW0108
