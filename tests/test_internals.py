"""What AutoByte relies on in PyTorch without a promise: a test that fails here says what PyTorch has changed."""

import inspect
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.amp import GradScaler
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from autobyte import internals

CHANGED = f"torch {torch.__version__} has changed: "


def test_only_the_stores_sockets_are_hung_up_on_and_those_without_a_port_are_let_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(internals, "_get_default_store", lambda: store)
    one, other = socket.socketpair()  # as multiprocessing's pipes are
    with one, other:
        internals.hang_up()
        one.sendall(b"here")
        assert other.recv(4) == b"here"
    with pytest.raises(RuntimeError):
        store.check(["x"])


def test_another_service_at_the_stores_port_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as made:
        servers, port = [], 0
        for address in ("127.0.0.1", "127.0.0.2"):
            servers.append(made.enter_context(socket.create_server((address, port))))
            port = servers[-1].getsockname()[1]
        clients = [made.enter_context(socket.create_connection(each.getsockname())) for each in servers]
        peers = [made.enter_context(each.accept()[0]) for each in servers]
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(internals, "_get_default_store", lambda: SimpleNamespace(host="127.0.0.1", port=port))
        internals.hang_up()
        clients[1].sendall(b"here")
        assert peers[1].recv(4) == b"here"
        assert peers[0].recv(4) == b""  # of the store


class Reader(SGD):
    """Notes who reads its groups; as a wrapper, it could be one that says it takes a scale."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.unscaling: list[bool] = []
        super().__init__([parameter], lr=1.0)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        self.unscaling.append(internals.is_unscaling())
        return self._groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._groups = groups


def scaled(kind: type[Reader]) -> tuple[GradScaler, Reader, nn.Parameter]:
    """A scaler of 8, and an optimizer of one parameter whose gradient is 3, times the scale."""
    parameter = nn.Parameter(torch.zeros(1))
    optimizer, scaler = kind(parameter), GradScaler("cpu", init_scale=8.0)
    scaler.scale((3 * parameter).sum()).backward()
    optimizer.unscaling.clear()
    return scaler, optimizer, parameter


def test_a_scaler_reads_the_groups_when_it_unscales() -> None:
    scaler, optimizer, parameter = scaled(Reader)
    assert optimizer.param_groups[0]["params"] == [parameter]
    assert optimizer.unscaling == [False], CHANGED + "everybody who reads param_groups is taken for GradScaler"
    scaler.unscale_(optimizer)
    assert any(optimizer.unscaling), CHANGED + "GradScaler._unscale_grads_ no longer reads optimizer.param_groups"
    assert parameter.grad is not None and parameter.grad.item() == 3.0


class Takes(Reader):
    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> Any:
        self.seen = getattr(self, "grad_scale", None)
        return super().step(closure) if self.seen is None else None


class Refuses(Takes):
    _step_supports_amp_scaling = False


def test_a_scaler_leaves_its_scale_only_with_an_optimizer_that_says_so() -> None:
    scaler, takes, _ = scaled(Takes)
    scaler.step(takes)
    assert takes.seen is not None, CHANGED + "GradScaler.step does not look at _step_supports_amp_scaling"
    scaler, refuses, parameter = scaled(Refuses)
    scaler.step(refuses)
    assert refuses.seen is None, CHANGED + "GradScaler.step leaves its scale in spite of _step_supports_amp_scaling"
    assert parameter.item() == -3.0, CHANGED + "GradScaler.step does not unscale what the optimizer does not"


def shared_of(loss: Tensor, parameters: list[nn.Parameter]) -> list[bool]:
    """What `is_shared` says of each parameter's gradient at the moment at which autograd hands it on."""
    shared: dict[int, bool] = {}
    for index, parameter in enumerate(parameters):

        def note(parameter: nn.Parameter, index: int = index) -> None:
            assert parameter.grad is not None
            shared[index] = internals.is_shared(parameter.grad)

        parameter.register_post_accumulate_grad_hook(note)
    loss.backward()
    return [shared[index] for index in range(len(parameters))]


def test_a_gradient_of_its_own_is_told_from_one_that_others_use() -> None:
    rows, place = nn.Parameter(torch.ones(1, 2, 3)), nn.Parameter(torch.ones(2, 3))
    own, view = shared_of((rows.exp() + place.unsqueeze(0)).square().sum(), [rows, place])
    assert not own, CHANGED + "_storage_Use_Count counts more users of a gradient that is its parameter's alone"
    assert view, CHANGED + "_storage_Use_Count counts fewer users, or autograd copies a gradient that is a view"
    assert not internals.is_shared(torch.ones(3).to_sparse())


def test_a_gpu_spins_for_so_many_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is needed: the name is still there, and takes a number of cycles."""
    assert [*inspect.signature(torch.cuda._sleep).parameters] == ["cycles"]
    spun: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", spun.append)
    internals.spin(1000)
    assert spun == [1000]


def test_the_version_counts_changes_in_place_and_not_those_through_data() -> None:
    tensor = torch.zeros(3)
    before = tensor._version
    tensor.data.view(-1).add_(1.0)
    assert tensor._version == before, CHANGED + "what is done to .data counts as a change of the tensor"
    tensor.mul_(2.0)
    assert tensor._version > before, CHANGED + "Tensor._version does not count changes in place"


def test_copies_go_into_memory_that_is_there() -> None:
    whole = torch.zeros(5)
    internals.copy_each([whole[:2], whole[2:]], [torch.ones(2, dtype=torch.bfloat16), torch.full((3,), 2.0)])
    assert whole.tolist() == [1.0, 1.0, 2.0, 2.0, 2.0], CHANGED + "_foreach_copy_ does not copy into views"


@pytest.fixture
def group() -> Iterator[dist.Store]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


def test_the_store_is_the_one_at_which_the_ranks_met(group: dist.Store) -> None:
    internals.default_store().set("said", "here")
    assert any(key.endswith("said") for key in group.list_keys()), CHANGED + "_get_default_store is another store"


def backends(timeout_s: float, threads: int = 2) -> list[Any]:
    """Two ranks' backends, on a store of their own."""
    store, made = dist.HashStore(), {}

    def make(rank: int) -> None:
        limit = timedelta(seconds=timeout_s)
        made[rank] = internals.own_gloo("test", rank=rank, size=2, timeout=limit, threads=threads, store=store)

    both = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(30)
    assert len(made) == 2, CHANGED + "ProcessGroupGloo is made another way"
    return [made[0], made[1]]


def test_a_backend_of_our_own_sums_and_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # binds to what it names
    near, far = backends(timeout_s=1.0)
    tensors = [torch.ones(4), torch.full((4,), 2.0)]
    works = [
        backend.allreduce([tensor], dist.AllreduceOptions())
        for backend, tensor in zip((near, far), tensors, strict=True)
    ]
    for work in works:
        work.wait()
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 4] * 2
    alone = near.allreduce([torch.ones(1)], dist.AllreduceOptions())
    with pytest.raises(RuntimeError):  # by the timeout that was set: gloo's own is half an hour
        alone.wait(timedelta(seconds=20))
    assert alone.is_completed(), CHANGED + "ProcessGroupGloo does not take the timeout of its _Options"


def test_a_backend_has_as_many_threads_as_it_was_given() -> None:
    before = len(list(Path("/proc/self/task").iterdir()))
    both = backends(timeout_s=20.0, threads=9)
    more = len(list(Path("/proc/self/task").iterdir())) - before
    assert more >= 9 * len(both), CHANGED + "ProcessGroupGloo does not take the number of threads of its _Options"


def test_hooks_of_an_optimizer_and_of_all_are_seen() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    assert not internals.has_step_hooks(optimizer)
    for register in (
        optimizer.register_step_pre_hook,
        optimizer.register_step_post_hook,
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
    ):
        handle = register(lambda *_: None)
        assert internals.has_step_hooks(optimizer), CHANGED + f"{register.__name__} keeps its hooks elsewhere"
        handle.remove()
        assert not internals.has_step_hooks(optimizer)


def test_a_scheduler_does_not_replace_a_step_and_others_do() -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    assert not internals.has_own_step(optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 5)
    assert "step" in vars(optimizer) and not internals.has_own_step(optimizer), (
        CHANGED + "a scheduler marks the step that it replaces another way"
    )
    optimizer.step = lambda closure=None: None  # type: ignore[method-assign]
    assert internals.has_own_step(optimizer)


def test_a_step_that_only_makes_state_is_known() -> None:
    """However many wrappers lie between; and `torch.distributed.checkpoint` steps at all."""

    class Steps(SGD):
        made: ClassVar[list[bool]] = []

        @internals.untraced
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            self.made.append(internals.is_making_state())
            return super().step(closure)

    model = nn.Linear(2, 2)
    optimizer = Steps(model.parameters(), lr=0.1, momentum=0.9)
    schedule = StepLR(optimizer, 1)
    get_optimizer_state_dict(model, optimizer)
    assert Steps.made == [True], CHANGED + "torch.distributed.checkpoint makes state in another way"
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    schedule.step()
    assert Steps.made == [True, False]


def test_the_compiler_runs_what_is_untraced_as_it_is() -> None:
    seen = []

    @internals.untraced
    def method(value: Tensor) -> None:
        seen.append((torch.compiler.is_compiling(), float(value)))

    def traced(value: Tensor) -> Tensor:
        method(value + 1)
        return value * 2

    for function in (traced, method):
        torch.compile(function, backend="eager")(torch.ones(()))
    assert seen == [(False, 2.0), (False, 1.0)], CHANGED + "torch._disable_dynamo has no effect"


def test_compiled_modules_are_known() -> None:
    plain, in_place = nn.Linear(2, 2), nn.Linear(2, 2)
    in_place.compile(backend="eager")
    assert not internals.is_compiled(plain)
    assert internals.is_compiled(torch.compile(plain, backend="eager")), CHANGED + "torch.compile has no _orig_mod"
    assert internals.is_compiled(in_place), CHANGED + "Module.compile has no _compiled_call_impl"
    assert not internals.has_compiled_forward(plain)
    plain.forward = torch.compile(plain.forward, backend="eager")
    assert internals.has_compiled_forward(plain), CHANGED + "a compiled function has no _torchdynamo_orig_callable"


def test_a_graph_is_made_again_for_a_hook_that_came_later() -> None:
    import torch._dynamo  # noqa: PLC0415  (what uncompiled and see_hooks look for)

    torch._dynamo.reset()
    before, torch._dynamo.config.skip_nnmodule_hook_guards = torch._dynamo.config.skip_nnmodule_hook_guards, True
    try:
        inner, called = nn.Linear(2, 2), []
        compiled = torch.compile(nn.Sequential(inner), backend="eager")
        compiled(torch.ones(1, 2))
        internals.see_hooks()
        hook = internals.uncompiled(lambda *_: called.append(sys._getframe().f_code.co_name))
        inner.register_forward_pre_hook(hook)
        compiled(torch.ones(1, 2))
        compiled(torch.ones(1, 2))
        assert len(called) == 2, CHANGED + "a compiled graph leaves hooks out that came later"
    finally:
        torch._dynamo.config.skip_nnmodule_hook_guards = before
        torch._dynamo.reset()


def test_a_view_that_the_user_set_as_gradient_is_not_shared() -> None:
    """What autograd hands on is detached, so a gradient that is a view is the user's own buffer."""
    flat, parameter = torch.zeros(6), nn.Parameter(torch.ones(3))
    parameter.grad = flat[:3]
    (parameter * 2).sum().backward()
    assert not internals.is_shared(parameter.grad), CHANGED + "gradients that a user set are no longer views"
    other, another = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    shared: list[bool] = []
    for each in (other, another):
        each.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda p: shared.append(p.grad._is_view())
        )
    (other + another).square().sum().backward()
    assert shared == [False, False], CHANGED + "autograd hands on gradients that are views"


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("how", ["trace", "fake"])
def test_what_is_unrecorded_is_no_part_of_a_graph(how: str) -> None:
    weight, steps = torch.zeros(2), []

    def forward(inputs: Tensor) -> Tensor:
        with internals.unrecorded():
            steps.append(type(weight.add_(1.0)))
        return inputs * 2

    if how == "trace":
        graph = str(torch.jit.trace(forward, torch.ones(2), check_trace=False).graph)
        assert "aten::mul" in graph and "aten::add_" not in graph, (
            CHANGED + "an update is recorded by torch.jit.trace"
        )
    else:
        with FakeTensorMode() as mode:
            forward(mode.from_tensor(torch.ones(2)))
        assert steps == [Tensor] and weight.tolist() == [1, 1], CHANGED + "an update is made of fake tensors"


class Nccl:
    """Stands for PyTorch's backend where there is none: notes what it is made with."""

    made: ClassVar[list["Nccl"]] = []

    class Options:
        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self.handling = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING")
        self.rank, self.size, self.options = rank, size, options
        self.connected: list[torch.device] = []
        store.set("there", str(rank))
        self.made.append(self)

    def eager_connect_single_device(self, device: torch.device) -> None:
        if device.index:
            raise RuntimeError("no such device")
        self.connected.append(device)


@pytest.mark.parametrize("before", [None, "3"])
def test_an_nccl_backend_is_connected_at_once_and_does_not_end_the_process(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a stand-in: that PyTorch reads what it is told here, only a GPU can show."""
    name, store = "TORCH_NCCL_ASYNC_ERROR_HANDLING", dist.HashStore()
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    words: dict[str, Any] = {"rank": 1, "size": 2, "timeout": timedelta(seconds=5), "store": store}
    backend = internals.own_nccl("test", device=torch.device("cuda", 0), **words)
    assert (backend.handling, backend.rank, backend.size) == ("0", 1, 2)
    assert backend.options.is_high_priority_stream
    assert backend.options._timeout > timedelta(minutes=5)  # whoever called speaks first
    assert backend.connected == [torch.device("cuda", 0)]
    assert store.get("autobyte/test/there") == b"1"
    assert os.environ.get(name) == before
    with pytest.raises(RuntimeError, match="no such device"):
        internals.own_nccl("test", device=torch.device("cuda", 1), **words)
    assert os.environ.get(name) == before


def test_pytorchs_header_still_has_what_an_nccl_backend_is_made_with() -> None:
    """The wheel without NCCL has the header, too."""
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    text = header.read_text()
    for words in (
        '"TORCH_NCCL_ASYNC_ERROR_HANDLING"',
        "NoHandling = 0",
        "is_high_priority_stream",
        "void eagerConnectSingleDevice(at::Device device)",
        "void abort()",
        "void shutdown()",
    ):
        assert words in text, CHANGED + f"ProcessGroupNCCL has no {words}"


def test_what_moves_tensors_of_gpus_is_named_by_the_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert internals.cuda_backend(None) == "gloo", CHANGED + "get_backend_config names no devices"
        assert internals.cuda_backend(dist.new_group([0], backend="cpu:gloo")) == ""
    finally:
        dist.destroy_process_group()


def test_a_profiler_is_known_on_every_thread() -> None:
    seen = []
    with torch.profiler.profile():
        thread = threading.Thread(target=lambda: seen.append(internals.is_profiled()))
        thread.start()
        thread.join()
    assert [*seen, internals.is_profiled()] == [True, False], CHANGED + "a running profiler cannot be seen"


def test_an_entry_in_a_trace_lasts_until_it_is_ended_on_any_thread() -> None:
    with torch.profiler.profile() as profiler:
        end = internals.show_span("travels")
        time.sleep(0.02)
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
    (event,) = [event for event in profiler.events() or () if event.name == "travels"]
    assert 20e3 < event.time_range.elapsed_us() < 5e6


def test_a_socket_that_another_thread_opens_meanwhile_is_not_gloos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    look, theirs = internals._sockets, list[socket.socket]()

    def then_open() -> dict[int, str]:
        found = look()
        theirs.append(socket.socket())
        return found

    monkeypatch.setattr(internals, "_sockets", then_open)
    known = dict(internals._of_gloo)  # a descriptor that was closed since may come again
    backend = internals.own_gloo("alone", rank=0, size=1, timeout=timedelta(seconds=5), store=dist.HashStore())
    assert backend.size() == 1
    ours = {fd for fd, target in internals._of_gloo.items() if known.get(fd) != target}
    opened = {each.fileno() for each in theirs}
    for each in theirs:
        each.close()
    assert len(ours) == 1, CHANGED + "gloo opens another number of sockets than one for each rank"
    assert not opened & ours


def test_a_hook_can_come_before_those_that_are_there() -> None:
    """Whoever times a gradient must hear of it first. Autograd calls hooks in the order of torch's dictionary."""
    order: list[str] = []
    parameter = nn.Parameter(torch.ones(2))
    parameter.register_post_accumulate_grad_hook(lambda _: order.append("theirs"))
    handle = internals.hook_first(parameter, lambda _: order.append("first"))
    parameter.sum().backward()
    assert order == ["first", "theirs"], CHANGED + "hooks of a parameter are kept in another way"
    handle.remove()
    parameter.sum().backward()
    assert order == ["first", "theirs", "theirs"]


def reduced(names: int, summed: list[int]) -> tuple[internals.OwnReducer, list[nn.Parameter]]:
    """A reducer of one rank of two, whose other rank has gradients of zeros, and its parameters."""
    parameters = {f"weight{index}": nn.Parameter(torch.ones(4)) for index in range(names)}

    def add(bucket: Tensor) -> torch.futures.Future[list[Tensor]]:
        summed.append(bucket.numel())
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result([bucket])
        return future

    reducer = internals.OwnReducer(
        parameters, first_bytes=32, bucket_bytes=32, rank=0, size=2, add=add, share=lambda _: None
    )
    return reducer, list(parameters.values())


def test_the_reducer_averages_what_is_expected_and_says_what_is_missing() -> None:
    summed: list[int] = []
    reducer, parameters = reduced(4, summed)
    assert reducer.missing() == []
    sum((each * 6).sum() for each in parameters).backward()  # type: ignore[union-attr]
    assert reducer.missing() == [], CHANGED + "a reducer that expects nothing takes note of gradients"
    assert summed == []
    for each in parameters:
        each.grad = None
    reducer.expect()
    sum((each * 6).sum() for each in parameters[:2]).backward()  # type: ignore[union-attr]
    assert reducer.missing() == [2, 3], CHANGED + "a reducer's error does not name gradients that are missing"
    assert summed == []
    torch.autograd.backward(parameters[2:], [torch.zeros(4)] * 2)
    assert reducer.missing() == []
    assert summed == [16], CHANGED + "zeros given to a parameter do not complete its bucket"
    assert [float(each.grad[0]) for each in parameters if each.grad is not None] == [3.0, 3.0, 0.0, 0.0]
    assert reducer.rebuild(), CHANGED + "a reducer does not cut buckets again after a pass"
    assert not reducer.rebuild()
    reducer.expect()
    sum(each.sum() for each in parameters).backward()  # type: ignore[union-attr]
    assert summed == [16, 8, 8]


def test_the_reducer_tells_passes_that_add_to_gradients() -> None:
    reducer, parameters = reduced(3, [])
    told: list[bool] = []

    def outputs(names: int = 3) -> Tensor:
        total: Tensor = inputs.sum() + sum((each * 6).sum() for each in parameters[:names])
        total.register_hook(lambda _: told.append(reducer.adds()))  # type: ignore[no-untyped-call]
        return total

    inputs = torch.ones(4, requires_grad=True)
    outputs().backward()
    outputs(1).backward()
    outputs().backward(inputs=parameters[2:])
    assert told == [True, True, True], CHANGED + "it is not known which passes add to gradients"
    told.clear()
    torch.autograd.grad(outputs(), inputs)
    torch.autograd.grad(outputs(), parameters)
    torch.autograd.grad(outputs(), parameters[1:2])
    outputs(0).backward()
    assert told == [False, False, False, False], CHANGED + "it is not known which passes add to no gradient"


def test_the_reducers_hooks_can_be_taken_away_and_errors_of_its_sums_come_through() -> None:
    summed: list[int] = []
    reducer, parameters = reduced(2, summed)
    reducer.expect()
    reducer.remove()
    sum(each.sum() for each in parameters).backward()  # type: ignore[union-attr]
    assert summed == [], CHANGED + "a reducer's hooks stay"
    del reducer
    again, others = reduced(2, summed)
    again._group._add = lambda _: 1 / 0  # type: ignore[assignment, return-value]
    again.expect()
    with pytest.raises(ZeroDivisionError):
        sum(each.sum() for each in others).backward()  # type: ignore[union-attr]
    again.expect()
    again._group._add = lambda _: pytest.fail("it is gone")
    del again
    sum(each.sum() for each in others).backward()  # type: ignore[union-attr]


def test_passes_have_numbers() -> None:
    weight, seen = nn.Parameter(torch.ones(2)), list[int]()
    for _ in range(2):
        output = weight * 2
        output.register_hook(lambda _: seen.append(internals.backward_pass()))  # type: ignore[no-untyped-call]
        output.sum().backward()
    assert len(set(seen)) == 2, CHANGED + "two backward passes have one number"
