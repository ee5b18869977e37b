"""Models, clusters, and what crosses a host's link."""

import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import BARE, make_job, make_model, typed_job

from autobyte.errors import InputError
from autobyte.job import Cluster, Job, Layer, Model, Tensor


def test_tensors_stand_in_the_order_of_first_use() -> None:
    model = Model.build(
        "m", [("a", [("x", 3), ("y", 0)], 1, 2), ("b", [], 3, 4), ("c", [("z", 5)], 5, 6)], batch_size=8
    )
    assert [(t.name, t.numel, t.layer) for t in model.tensors] == [("x", 3, 0), ("y", 0, 0), ("z", 5, 2)]
    assert model.parameters == 8
    assert model.forward_s.tolist() == [1, 3, 5]
    assert model.backward_s.tolist() == [2, 4, 6]
    assert model.compute_s == 21


@pytest.mark.parametrize("numel", [-1, 1.5, math.nan, math.inf])
def test_a_tensor_has_a_whole_number_of_elements(numel: float) -> None:
    with pytest.raises(InputError, match=rf"^tensor 'w': numel must be a whole number of at least 0, got {numel}$"):
        Tensor("w", numel)


def test_a_dtype_that_does_not_travel_is_named() -> None:
    with pytest.raises(InputError, match=r"^tensor 'w': dtype 'int8' does not travel \(known: float16, bfloat16, "):
        Tensor("w", 1, "int8")


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["forward_s", "backward_s"])
def test_a_layers_times_are_finite_and_not_negative(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"^layer 'l': {name} must be a finite number of at least 0, got {value}$"):
        Layer("l", (), **({"forward_s": 0.0, "backward_s": 0.0} | {name: value}))


def test_an_empty_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"^model 'void' has no layers: nothing to train$"):
        Model("void", (), 1)


@pytest.mark.parametrize("batch", [0, -8, 1.5, math.nan, math.inf])
def test_a_batch_is_a_whole_number(batch: float) -> None:
    with pytest.raises(InputError, match=rf"batch_size must be a whole number of at least 1, got {batch}"):
        replace(make_model(1), batch_size=batch)


@pytest.mark.parametrize("digits", [16, 400, 5000])  # a float takes 308, text 4300
def test_a_number_beyond_all_reason_is_one_line(digits: int) -> None:
    many = 10**digits
    with pytest.raises(
        InputError, match=rf"batch_size must be at most 1,125,899,906,842,624, got 1.00000e\+{digits}$"
    ):
        replace(make_model(1), batch_size=many)
    with pytest.raises(InputError, match=r"^tensor 'w': numel must be at most 1,125,899,906,842,624, got 1.0"):
        Tensor("w", many)
    with pytest.raises(InputError, match=r"^layer 'l': forward_s must be at most 1,125,899,906,842,624, got 1.0"):
        Layer("l", (), 1e308, 1e308)


def test_a_tensor_in_the_wrong_layer_is_named() -> None:
    with pytest.raises(InputError, match=r"^tensor 'w' says layer 1 but stands in layer 0 \('l'\)$"):
        Model("m", (Layer("l", (Tensor("w", 1, layer=1),), 0.0, 0.0),), 1)


def test_equal_models_are_one_key_and_share_their_gradients() -> None:
    one, other = make_model(3, 5), make_model(3, 5)
    assert one == other
    assert hash(one) == hash(other)
    assert Job(one, BARE).gradients is Job(other, Cluster(5)).gradients
    assert Job(one, BARE).gradients is not Job(one, BARE, wire_dtype="float16").gradients
    assert make_model(3, 4) != one


def test_a_model_from_another_process_is_the_same_key() -> None:
    model = make_model(3, 5)
    hash(model)
    script = "import pickle, sys; m = pickle.load(sys.stdin.buffer); n = pickle.loads(pickle.dumps(m))"
    script += "; from dataclasses import replace; assert hash(m) == hash(replace(m)) == hash(n)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(model),
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


def test_scaling_keeps_empty_tensors_empty_and_others_not() -> None:
    scaled = make_model((100, 0, 3)).scaled(time=0.5, size=0.1)
    assert [tensor.numel for tensor in scaled.tensors] == [10, 0, 1]
    assert (scaled.forward_s.tolist(), scaled.backward_s.tolist()) == ([0.5], [1.0])


@pytest.mark.parametrize("scale", ["time", "size"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_scale_that_cannot_be_is_named(scale: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"^{scale} scale must be a finite number of at least 0, got {value}$"):
        make_model(1).scaled(**{scale: value})


def test_bytes_are_counted_in_the_dtype_on_the_wire() -> None:
    job = typed_job((3, "float32"), (3, "float16"), (0, "float64"), (3, "float64"))
    assert job.gradients.nbytes.tolist() == [12, 6, 0, 24]
    assert job.gradients.total_bytes == 42
    assert len(set(job.gradients.kind.tolist())) == 3
    half = replace(job, wire_dtype="bfloat16").gradients
    assert half.nbytes.tolist() == [6, 6, 0, 6]
    assert len(set(half.kind.tolist())) == 1


def test_a_model_without_tensors_sends_nothing() -> None:
    gradients = make_job([], []).gradients
    assert (len(gradients), gradients.total_bytes, gradients.nbytes.tolist()) == (0, 0, [])


def test_one_value_stands_for_every_worker() -> None:
    cluster = Cluster(3, up_bytes_per_s=(2.0,), down_bytes_per_s=(1.0, 2.0, 3.0))
    assert cluster.up_bytes_per_s == (2.0, 2.0, 2.0)
    assert cluster.down_bytes_per_s == (1.0, 2.0, 3.0)
    assert cluster.table.tolist() == [[2, 2, 2], [1, 2, 3], [1, 1, 1]]


@pytest.mark.parametrize("values", [(), (1.0, 2.0), (1.0, 2.0, 3.0, 4.0)])
@pytest.mark.parametrize("name", ["up_bytes_per_s", "down_bytes_per_s", "slowdown"])
def test_a_list_of_the_wrong_length_is_named(name: str, values: tuple[float, ...]) -> None:
    message = rf"^{name} needs one value, or one for each of 3 workers, got {len(values)}$"
    with pytest.raises(InputError, match=message):
        Cluster(3, **{name: values})


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("name", ["up_bytes_per_s", "down_bytes_per_s", "slowdown"])
def test_rates_and_slowdowns_are_positive(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"^{name} must be positive, got {value}$"):
        Cluster(2, **{name: (1.0, value)})


def test_a_link_may_be_without_limit_but_a_worker_may_not_stand_still() -> None:
    assert Cluster(2, up_bytes_per_s=(math.inf,), down_bytes_per_s=(math.inf,)).seconds_per_byte == 0
    with pytest.raises(InputError, match=r"^slowdown must be positive, got inf$"):
        Cluster(2, slowdown=(math.inf,))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"workers": -1}, "workers must be a whole number of at least 1, got -1"),
        ({"workers": 1.5}, "workers must be a whole number of at least 1, got 1.5"),
        ({"workers": math.nan}, "workers must be a whole number of at least 1, got nan"),
        ({"servers": -1}, "servers must be a whole number of at least 0, got -1"),
        ({"servers": 3}, "servers stand on the workers' hosts: at most 2, got 3"),
        ({"latency_s": -1e-6}, "latency_s must be a finite number of at least 0, got -1e-06"),
        ({"latency_s": math.nan}, "latency_s must be a finite number of at least 0, got nan"),
        ({"overhead_s": (0.0, -1.0)}, "overhead_s must be a finite number of at least 0, got -1.0"),
        ({"overhead_s": (math.inf, 0.0)}, "overhead_s must be a finite number of at least 0, got inf"),
        ({"overhead_s": (0.0,)}, r"overhead_s is two times, per block and per hop, got \(0.0,\)"),
    ],
)
def test_a_cluster_that_cannot_be_is_told_why(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}$"):
        Cluster(**({"workers": 2} | wrong))


def test_an_unknown_architecture_and_an_unknown_wire_dtype_come_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown architecture 'al-reduce'; did you mean 'allreduce'"):
        Cluster.uniform(2, 1e9, architecture="al-reduce")
    with pytest.raises(InputError, match=r"unknown wire dtype 'flot16'; did you mean 'float16'"):
        make_job(1, wire_dtype="flot16")


@pytest.mark.parametrize("accumulation", [0, -1, 1.5, math.nan])
def test_a_step_has_at_least_one_backward_pass(accumulation: float) -> None:
    with pytest.raises(InputError, match=r"accumulation must be a whole number of at least 1"):
        Job(make_model(1), BARE, accumulation)


def test_a_step_trains_on_the_batches_of_all_workers_and_passes() -> None:
    assert Job(replace(make_model(1), batch_size=32), Cluster(8), accumulation=4).samples == 32 * 8 * 4


# Bytes over each host's link per byte of gradient, worked out by hand.
HALF_SERVED = [2.0, 2.0, 1.0, 1.0]  # a server's host: 1/2 pushed away and 3 x 1/2 given out; others: all pushed
TRAFFIC = [
    (Cluster(1), [0.0]),
    (Cluster(2), [1.0, 1.0]),
    (Cluster(4), [1.5] * 4),
    (Cluster(8), [1.75] * 8),
    (Cluster(1, servers=1), [0.0]),
    (Cluster(4, servers=4), [1.5] * 4),
    (Cluster(4, servers=2), HALF_SERVED),
    (Cluster(4, servers=1), [3.0, 1.0, 1.0, 1.0]),
]


@pytest.mark.parametrize(("cluster", "expected"), TRAFFIC)
def test_traffic_is_what_it_is_on_paper(cluster: Cluster, expected: list[float]) -> None:
    assert cluster.traffic.tolist() == expected
    assert cluster.seconds_per_byte == max(expected) / 1.25e9


def message_table(workers: int, servers: int) -> np.ndarray:
    """Bytes from host to host per byte of gradient, message by message."""
    table = np.zeros((workers, workers))
    if not servers:
        for _ in range(2 * (workers - 1)):  # rounds of reduce-scatter and all-gather, a shard to the right each
            for host in range(workers):
                table[host, (host + 1) % workers] += 1 / workers
        return table
    for worker in range(workers):
        for server in range(servers):
            table[worker, server] += 1 / servers  # push
            table[server, worker] += 1 / servers  # pull
    np.fill_diagonal(table, 0)  # what stays on a host crosses no link
    return table


@given(workers=st.integers(1, 9), data=st.data())
def test_what_goes_up_comes_down(workers: int, data: st.DataObject) -> None:
    servers = data.draw(st.integers(0, workers))
    up_rates, down_rates = (
        data.draw(st.lists(st.floats(1, 100), min_size=workers, max_size=workers)) for _ in range(2)
    )
    cluster = Cluster(workers, servers, tuple(up_rates), tuple(down_rates))
    up, down = message_table(workers, servers).sum(axis=1), message_table(workers, servers).sum(axis=0)
    assert cluster.traffic == pytest.approx(up)
    assert cluster.traffic == pytest.approx(down)
    assert cluster.traffic.sum() == pytest.approx(2 * (workers - 1))  # whatever the architecture
    assert cluster.seconds_per_byte == pytest.approx(max(*(up / up_rates), *(down / down_rates)))


def test_a_job_is_named_by_plain_json() -> None:
    data = make_job(3, 5, cluster=replace(BARE, slowdown=(1.0, 2.0))).to_json()
    assert data["model"] == "toy"
    assert data["parameters"] == 8
    assert (data["architecture"], data["workers"], data["servers"]) == ("allreduce", 2, 0)
    assert (data["up_bytes_per_s"], data["slowdown"]) == (1.25e9, [1.0, 2.0])


def test_workers_that_share_hosts() -> None:
    cluster = Cluster(8, gpus_per_node=4)
    assert (cluster.nodes, cluster.traffic.tolist()) == (2, [1.0] * 8)
    for how, what in (
        ({"gpus_per_node": 3}, "gpus_per_node must divide 8 workers, got 3"),
        ({"gpus_per_node": 0}, "gpus_per_node must be a whole number of at least 1, got 0"),
        ({"gpus_per_node": 2, "servers": 8}, "gpus_per_node is for all-reduce; with servers it is 1, got 2"),
        ({"local": (0.0, 1e-6)}, "local is a positive rate and a time per hop"),
    ):
        with pytest.raises(InputError, match=what):
            Cluster(8, **how)
