"""Everything of PyTorch that AutoByte uses and PyTorch does not promise to keep.

Each function says why the public interface is not enough. All of them were seen to work in torch 2.13;
`tests/test_internals.py` tests the behaviour that each relies on, and says which one has changed.

Four are read where they are used, because a function around them would do nothing, or not work:

- `Tensor._version` counts changes in place. `torch/exchange/completed.py` and `torch/model/held.py` compare it to
  refuse a gradient that was changed while it travelled. It is read once per tensor and step on the thread that
  trains, where a call would cost more than the attribute itself.
- `Optimizer._step_supports_amp_scaling` is read by `GradScaler.step`. If it is true, the scaler leaves its scale on
  the object that it was given, the wrapper, where the user's optimizer does not look for it. `DistributedOptimizer`
  has to answer the scaler itself, with a class attribute.
- `torch._C.TensorBase` has the getter and setter of `.grad`, and `torch._C.DisableTorchFunctionSubclass` hands a call
  past `__torch_function__`: `torch/model/pending.py` and `awaited.py` let a parameter be looked at as it is by them.
- `torch.distributed._compute_bucket_assignment_by_size` assigns DDP's buckets. `tests/scheduler/test_policies.py`
  uses it, too, to compare the policy `ddp` with them.
"""

import gc
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from inspect import unwrap
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import AllgatherOptions, Logger, Reducer, Work, _compute_bucket_assignment_by_size
from torch._compile import _disable_dynamo
from torch.amp import GradScaler
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

NCCL_LATER = timedelta(minutes=10)  # than the caller's timeout is NCCL's own: whoever called is to speak first
CONNECT_S = 2.0  # for a store's host that is there
HANG_UP_S = 0.2  # for one that is being killed
THREADS = 8  # of gloo's pool: at least the blocks in flight; its default is 2
WRAPPERS = 12  # frames between whoever calls `step` and the step itself: more than anybody has

_strided, _uses, _ScriptModule = torch.strided, torch._C._storage_Use_Count, torch.jit.ScriptModule

Hook = TypeVar("Hook", bound=Callable[..., Any])


def is_unscaling() -> bool:
    """Whether the property that calls this is being read by `GradScaler.unscale_`, or by its `step`.

    The scaler divides all gradients by its scale without telling the optimizer: reading `param_groups` is the only
    sign of it, and the last moment to wait for averages.
    """
    return sys._getframe(2).f_code is GradScaler._unscale_grads_.__code__


_ZEROING = {unwrap(each.zero_grad).__code__ for each in (nn.Module, Optimizer)}


def is_zeroing() -> bool:
    """Whether `model.zero_grad` or an optimizer's own calls the function that calls this, to set `.grad` to None.

    Both look at every `.grad` before they let go of it, and do not use what is in it. Told to keep it, they fill it
    with zeros.
    """
    frame = sys._getframe(2)
    return frame.f_code in _ZEROING and bool(frame.f_locals["set_to_none"])


def is_shared(gradient: Tensor) -> bool:
    """Whether other tensors lie in the memory of a gradient that its parameter has just got.

    Autograd hands a gradient on without a copy even where it is a view of one that is still needed: of a positional
    embedding that is added to a batch of one, say, or of two parameters that are added. Nothing public counts who
    uses a storage. What autograd hands on is detached; a gradient that is a view was set by the user, whose buffer is
    to be averaged.
    """
    if gradient.layout is not _strided:
        return False
    storage = gradient.untyped_storage()  # counts, too
    return _uses(storage._cdata) > 2 and not gradient._is_view()


def copy_each(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors, one by one, into others of the same shapes, in one call.

    The public `copy_` would be a call from Python for every tensor of a fused block.
    """
    torch._foreach_copy_(targets, sources)


def default_store() -> Store:
    """The store at which the ranks of the default group met.

    `init_process_group` makes it of the environment, and does not hand it out. Under torchelastic the store outlives
    a restart, so keys carry the number of the attempt: what ranks of an earlier one wrote is never read.

    Raises:
        ValueError: there is no default group.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # set by the launcher, as RANK is
    return PrefixStore(f"attempt{attempt}", _get_default_store())


def own_store(store: Store) -> Store:
    """A store by a connection of its own, because a client that waits lets no other thread ask meanwhile.

    PyTorch's older stores cannot be cloned: then it is the one that all share. `clone` tries to connect for twice the
    store's timeout, and cannot be stopped: that nobody listens there any more is found out before. A host that is
    being killed closes its sockets one by one, and still accepts while its peers see others closed: then it hangs up.
    `clone` looks up the name of every address, for its log, which takes 5 s where a name server's answer is lost.

    Raises:
        ConnectionError: nobody listens where the store was.
    """
    if not hasattr(store, "clone"):
        return store
    base = _underlying(store)
    if hasattr(base, "host"):
        try:
            with socket.create_connection((base.host, base.port), timeout=CONNECT_S) as peer:
                peer.settimeout(HANG_UP_S)
                if not peer.recv(1):
                    raise ConnectionResetError("the store has hung up")
        except ConnectionError:
            raise
        except OSError:  # it waits to be asked; or the network is congested and loses what connects: no proof
            pass
    return cast(Store, store.clone())


def _underlying(store: Any) -> Any:
    """A store without its prefixes."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def restart_fails() -> bool:
    """Whether torchelastic could restart this training, and the restart would fail.

    The default group's gloo leaves addresses in the store. torchelastic shares its store with the ranks of every
    attempt, torch 2.13 without a prefix for the attempt: then ranks of the next one try to reach those that are dead.
    A store does not tell its prefix, but the keys that it holds.
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or 0)
    if not restarts or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not dist.is_gloo_available():
        return False
    if "gloo" not in dist.get_backend_config():
        return False
    store, probe = _get_default_store(), "autobyte/probe"
    store.set(probe, "")
    store = _underlying(store)
    keys = store.list_keys() if hasattr(store, "list_keys") else []
    return any(key.endswith(probe) and "attempt" not in key for key in keys)


def store_host() -> str | None:
    """The host of the store at which the ranks of the default group met, as they name it; None of a file, say.

    MASTER_ADDR need not be set, or right, where `init_process_group` is told an address.
    """
    if not dist.is_initialized():
        return None
    return getattr(_underlying(_get_default_store()), "host", None)


def own_gloo(
    name: str, *, rank: int, size: int, timeout: timedelta, threads: int = THREADS, store: Any = None
) -> Any:
    """Make a gloo backend for one purpose: collectives of others must not come between its own.

    `dist.new_group` does not pass gloo's options on, so the backend is made directly, on the default group's store.
    It binds to the interface that GLOO_SOCKET_IFNAME names.

    Args:
        name: unlike any other, the same on all ranks.
        rank, size: of this process among those that take part.
        timeout: after which an operation fails.
        threads: operations that can be under way at once.
        store: where the ranks meet; None is the default group's.
    """
    before = _sockets()
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._threads = threads
    options._timeout = timeout
    interfaces = os.environ.get("GLOO_SOCKET_IFNAME", "")
    make = dist.ProcessGroupGloo
    options._devices = (
        [make.create_device(interface=interface) for interface in interfaces.split(",")]
        if interfaces
        else [make.create_default_device()]
    )
    backend = make(PrefixStore(f"autobyte/{name}", store or default_store()), rank, size, options)
    found = {fd: target for fd, target in _sockets().items() if before.get(fd) != target}
    if len(found) > size * len(options._devices):  # one that listens and one for each peer: others are among them
        for theirs in _of_python():
            found.pop(theirs, None)
    _of_gloo.update(found)
    return backend


#: Sockets of gloo's, by descriptor. It does not hand them out, and a child that is forked must not hold them: a data
#: loader's worker lives on for a while after its parent was killed, and the peers would take the parent for alive.
#: They are those that appear while gloo connects. What other threads open meanwhile with Python's `socket` is told
#: apart; what libraries open in C is not, and is closed in children, too.
_of_gloo: dict[int, str] = {}


def _sockets() -> dict[int, str]:
    """The sockets of this process, with what tells each from all others; none where the system does not list them."""
    found: dict[int, str] = {}
    with suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are all that is needed
            with suppress(OSError):  # it is closed again
                if (target := os.readlink(f"/proc/self/fd/{fd}")).startswith("socket:"):  # noqa: PTH115
                    found[int(fd)] = target
    return found


def hang_up(*, gloo: bool = False) -> None:
    """Shut down the sockets to the default group's store, or gloo's: calls that wait there fail at once.

    For the end of a process. Neither has a call that does it.
    """
    store = _underlying(_get_default_store()) if dist.is_initialized() else None
    port, chosen = getattr(store, "port", None), list[tuple[str, socket.socket]]()
    with ExitStack() as copies:
        for fd, target in _sockets().items():
            with suppress(OSError):
                copied = copies.enter_context(socket.socket(fileno=os.dup(fd)))
                if copied.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue  # gloo aborts the process if it cannot accept
                peer = copied.getpeername()  # of kinds without a port it is a name
                if _of_gloo.get(fd) == target if gloo else peer[1:2] == (port,):
                    chosen.append((str(peer[0]).removeprefix("::ffff:"), copied))
        hosts = {host for host, _ in chosen}
        if not gloo and len(hosts) > 1:  # another service has this port, too; else no name is looked up
            hosts = _numeric(getattr(store, "host", "")) & hosts or hosts
        for host, copied in chosen:
            with suppress(OSError):
                if host in hosts:
                    copied.shutdown(socket.SHUT_RDWR)


def _numeric(host: str) -> set[str]:
    """The addresses of a host; none if it is not known."""
    with suppress(OSError):
        return {str(found[4][0]).removeprefix("::ffff:") for found in socket.getaddrinfo(host, None)}
    return set()


def _of_python() -> set[int]:
    """Descriptors of sockets that Python has an object for."""
    return {each.fileno() for each in gc.get_objects() if issubclass(type(each), socket.socket)}


def _close_in_child() -> None:
    """Close the copies of gloo's sockets; a descriptor that was given to something else meanwhile stays."""
    there = _sockets()
    for fd, target in _of_gloo.items():
        if there.get(fd) == target:
            os.close(fd)
    _of_gloo.clear()


os.register_at_fork(after_in_child=_close_in_child)


class OwnReducer:
    """PyTorch's reducer, which averages gradients in buckets while backward goes on, without the module around it.

    `DistributedDataParallel` takes the place of the user's model, and its reducer has no public name. It waits in C++
    until all buckets of a pass are summed, and writes the averages into `.grad` before `backward()` returns. Its
    hooks on parameters go when it does.

    Args:
        parameters: whose gradients are averaged, in the same order on all ranks, by name.
        first_bytes, bucket_bytes: sizes of the first bucket and of the others.
        rank, size: of this process among those that take part.
        add: sums a bucket over all ranks, in place; its future is over when that is done, and must not fail.
        share: sends rank 0's tensor to all ranks, in place.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        first_bytes: int,
        bucket_bytes: int,
        rank: int,
        size: int,
        add: Callable[[Tensor], torch.futures.Future[list[Tensor]]],
        share: Callable[[Tensor], None],
    ) -> None:
        each: list[Tensor] = list(parameters.values())
        sparse = [False] * len(each)
        indices, limits = _compute_bucket_assignment_by_size(
            each, [sys.maxsize], sparse
        )  # as DDP: one bucket, until `rebuild`
        self._group = _Sums(rank, size, add, share)
        names = dict(enumerate(parameters))  # asked for where TORCH_DISTRIBUTED_DEBUG is set
        self._reducer = Reducer(
            each, indices[::-1], limits[::-1], self._group, sparse, bucket_bytes, False, False, names, first_bytes
        )
        self._logger = Logger(self._reducer)
        self._reducer.set_logger(self._logger)
        with torch.enable_grad():
            self._ends = [end for end in map(_accumulator, each) if end is not None]

    def adds(self) -> bool:
        """Whether the backward pass that calls a hook in this thread adds to a gradient: `autograd.grad` does not."""
        try:
            return any(map(torch._C._will_engine_execute_node, self._ends))
        except RuntimeError:  # it derives with respect to a parameter, and says so in no other way
            return False

    def expect(self) -> None:
        """Gradients that become complete from now on are averaged, each once."""
        self._reducer.prepare_for_backward([])

    def missing(self) -> list[int]:
        """Places of gradients that a pass which has begun has not completed; none of a pass that is over.

        They are told by the message of an error alone, which names a hundred at most.
        """
        try:
            self._reducer._check_reducer_finalized()
        except RuntimeError as error:
            found = re.search(r"Parameter indices which did not receive grad for rank \d+:((?: \d+)+)", str(error))
            if found is None:
                raise
            return [int(place) for place in found[1].split()]
        return []

    def rebuild(self) -> bool:
        """Cut buckets again, in the order in which gradients became complete on rank 0. Collective.

        Returns:
            whether they were cut; False until a pass is over, and once they are.
        """
        return self._reducer._rebuild_buckets()

    def remove(self) -> None:
        """Take its hooks off the parameters."""
        self._ends = []
        self._reducer._remove_autograd_hooks()


def _accumulator(parameter: Tensor) -> Any:
    """The node of autograd's that adds to a gradient; None of a parameter that needs none."""
    node = parameter.view_as(parameter).grad_fn
    return None if node is None else node.next_functions[0][0]


class _Sums(dist.ProcessGroup):
    """What the reducer takes for a process group."""

    def __init__(
        self,
        rank: int,
        size: int,
        add: Callable[[Tensor], torch.futures.Future[list[Tensor]]],
        share: Callable[[Tensor], None],
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._add = add
        self._share = share

    def allreduce(self, tensors: list[Tensor], _options: object = None) -> Work:  # type: ignore[override]
        """Sum one bucket."""
        return _Sum(self._add(tensors[0]))

    def broadcast(self, tensors: list[Tensor], _options: object = None) -> Work:  # type: ignore[override]
        """Share which buckets gradients are in."""
        self._share(tensors[0])
        shared: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        shared.set_result(tensors)
        return _Sum(shared)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """For the reducer's log."""
        return "autobyte"


class _Sum(Work):
    """A collective of the reducer's that is under way."""

    def __init__(self, future: torch.futures.Future[list[Tensor]]) -> None:
        super().__init__()
        self._future = future

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """What is over when the collective is."""
        return self._future

    def wait(self, _timeout: timedelta = timedelta(0)) -> bool:
        """Wait for it."""
        self._future.wait()
        return True


def backward_pass() -> int:
    """The number of the backward pass that calls a hook in this thread; nothing public tells one from the next."""
    return torch._C._current_graph_task_id()


def after_backward(then: Callable[[], None]) -> None:
    """Call something when the backward pass that calls a hook in this thread is over, and the reducer with it."""
    later = (
        torch.autograd.Variable._execution_engine.queue_callback
    )  # what the reducer queues meanwhile comes before the second
    later(lambda: later(then))


def own_nccl(name: str, *, device: torch.device, rank: int, size: int, timeout: timedelta, store: Any = None) -> Any:
    """Make an NCCL backend for one purpose: its collectives keep an order of their own.

    `dist.new_group` makes a backend that users' collectives may reach. This one is made directly, on the default
    group's store, as `own_gloo` is, and its ranks are connected now, not in the first step. PyTorch's watchdog would
    end the process when a collective fails or times out; here it is told to leave that to whoever called, who knows
    which rank is silent. It reads that once, from the environment, when the backend is made.

    No GPU has run this yet. The names are those of torch 2.4 to 2.13.

    Args:
        name: unlike any other, the same on all ranks.
        device: the GPU of this rank.
        rank, size: of this process among those that take part.
        timeout: after which a rank that waits for others is to have been told so by its caller.
        store: where the ranks meet; None is the default group's.
    """
    make, handling = dist.ProcessGroupNCCL, "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    options = make.Options(is_high_priority_stream=True)
    options._timeout = timeout + NCCL_LATER
    before = os.environ.get(handling)
    os.environ[handling] = "0"
    try:
        with torch.cuda.device(device):
            backend = make(PrefixStore(f"autobyte/{name}", store or default_store()), rank, size, options)
            backend.eager_connect_single_device(device)
    finally:
        if before is None:
            del os.environ[handling]
        else:
            os.environ[handling] = before
    return backend


def cuda_backend(group: dist.ProcessGroup | None) -> str:
    """What moves tensors of CUDA devices in a group: `nccl`, say; empty if nothing does.

    `get_backend` has it for groups of one backend only.
    """
    pairs = (pair.partition(":") for pair in dist.get_backend_config(group).split(","))
    return {device: backend for device, _, backend in pairs}.get("cuda", "")


def is_profiled() -> bool:
    """Whether a profiler of PyTorch's runs, on any thread: names for its trace cost microseconds each."""
    return torch.autograd.profiler._is_profiler_enabled


def show_span(name: str) -> Callable[[], None]:
    """Begin an entry in the trace of the profiler that runs; what ends it, on any thread.

    The public `record_function` ends where it has begun. The profiler takes note of threads that it was started on,
    and of those that it was told to follow (`profile_all_threads`).
    """
    over: torch.futures.Future[Tensor] = torch.futures.Future()
    with torch.profiler.record_function(name) as entry:
        entry._call_end_callbacks_on_future(over)
    return lambda: over.set_result(torch.empty(0))


def gather_options() -> Any:
    """Options of an all-gather on the current stream.

    Their class has no public name, unlike those of the other collectives.
    """
    options = AllgatherOptions()
    options.asyncOp = False
    return options


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether anything hooks into `step` of this optimizer, or of all.

    The hooks expect one call a step. They can be registered in public, but not listed.
    """
    tables = [getattr(optimizer, f"_optimizer_step_{kind}_hooks", {}) for kind in ("pre", "post")]
    return any([*tables, _global_optimizer_pre_hooks, _global_optimizer_post_hooks])


def has_own_step(optimizer: Optimizer) -> bool:
    """Whether `step` of this object is another one than its class's.

    A learning-rate scheduler replaces it, too, by one that takes note of the call and passes it on: that one does
    not count. It is known by a mark that the scheduler sets for itself.
    """
    step = vars(optimizer).get("step")
    return step is not None and not (
        hasattr(step, "_wrapped_by_lr_sched") and step.__wrapped__ is type(optimizer).step
    )


@contextmanager
def unrecorded() -> Iterator[None]:
    """What happens within the block is no part of a graph that is being recorded, traced or made of fake tensors.

    An update is taken when a parameter is read, and that may be in the middle of a recording. Nothing public stops
    one.
    """
    tracing = torch._C._get_tracing_state()
    if tracing is None and not torch._C._len_torch_dispatch_stack():
        yield
        return
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        with _disable_current_modes():
            yield
    finally:
        torch._C._set_tracing_state(tracing)  # type: ignore[attr-defined]


def is_compiled(module: nn.Module) -> bool:
    """Whether it is made by `torch.compile`, `Module.compile` or TorchScript.

    Hooks on what is inside are not called there, or have it compiled again. `torch.compile` has no public mark.
    """
    own = module.__dict__
    if own.get("_compiled_call_impl") is not None or isinstance(module, _ScriptModule):
        return True
    return "_orig_mod" in own["_modules"]  # hasattr would look for a parameter and a buffer of that name, too


def has_compiled_forward(module: nn.Module) -> bool:
    """Whether `module.forward` was replaced by what `torch.compile` made of it; there is no public mark.

    Modules inside are then traced with their hooks.
    """
    forward = vars(module).get("forward")
    return forward is not None and hasattr(forward, "_torchdynamo_orig_callable")


def uncompiled(hook: Hook) -> Hook:
    """A hook that `torch.compile` does not trace into; where nothing is compiled, as it is.

    The public `torch.compiler.disable` would import the compiler, which takes seconds, for those who never use it.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return hook
    disabled, is_compiling = dynamo.disable(hook), torch.compiler.is_dynamo_compiling

    def either(*arguments: Any) -> Any:
        return disabled(*arguments) if is_compiling() else hook(*arguments)  # the former takes several times as long

    return cast(Hook, either)


def untraced(method: Hook) -> Hook:
    """A method that `torch.compile` runs as it is, and so all that it calls.

    The public `torch.compiler.disable` would import the compiler with this module; this one does at the first call,
    and by then an optimizer's construction has.
    """
    return cast(Hook, _disable_dynamo(method))


def is_making_state() -> bool:
    """Whether `torch.distributed.checkpoint` is calling `step` only to have an optimizer make its state.

    It does so on every rank by itself, with gradients of zeros and learning rates of zero, and tells nobody. Between
    it and the wrapper are a few frames of wrappers, of learning-rate schedulers for instance.
    """
    module = sys.modules.get("torch.distributed.checkpoint.state_dict")
    if module is None:
        return False
    frame = sys._getframe(1).f_back
    for _ in range(WRAPPERS):
        if frame is None or frame.f_code is module._init_optim_state.__code__:
            break
        frame = frame.f_back
    else:
        return False
    return frame is not None


def hook_first(parameter: nn.Parameter, hook: Callable[[nn.Parameter], None]) -> RemovableHandle:
    """Register a hook for a complete gradient that is called before those that are there already.

    `register_post_accumulate_grad_hook` has no `prepend`, as hooks of modules have.
    """
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    with torch._C.DisableTorchFunctionSubclass():  # no update of the parameter is taken for that
        hooks = parameter._post_accumulate_grad_hooks
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)  # autograd calls them in the order in which they were put in
    return handle


def see_hooks() -> None:
    """Have `torch.compile` look for hooks: a graph made of a module without any would go on leaving them out.

    The setting is this thread's alone, and has no public name.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.config.skip_nnmodule_hook_guards:
        dynamo.config.skip_nnmodule_hook_guards = False
        dynamo.reset()  # what was compiled before is compiled again when it is called


def spin(cycles: int) -> None:
    """Queue a kernel on the current CUDA stream that does nothing for so many cycles.

    Public kernels take as long as their operands are large, on all of the GPU; this one takes one multiprocessor.
    """
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
