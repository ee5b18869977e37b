"""Reading PipeDream's profiles: a small one written here, broken ones, and the real ones where they are present."""

import os
from pathlib import Path

import pytest

from autobyte.errors import FileError, InputError
from autobyte.models.pipedream import module_parameters, read_pipedream

IMAGES = 8 * 3 * 224 * 224 * 4  # bytes of a batch of 8


def node(number: int, text: str, *, times: tuple[str, str] = ("1.000", "2.000"), out: str = "64.000", size: int = 0):
    forward, backward = times
    return (
        f"node{number} -- {text} -- forward_compute_time={forward}, backward_compute_time={backward}, "
        f"activation_size={out}, parameter_size={size}.000"
    )


INPUT = node(1, "Input", times=("500.000", "0.000"), out=f"{IMAGES}.000")
CONV = node(2, "Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)", size=37632)
NORM = node(3, "BatchNorm2d(64, eps=1e-05, momentum=0.1, affine=True)", times=("0.500", "0.250"), size=512)
POOL = node(5, "AvgPool2d(kernel_size=7, stride=1, padding=0)", times=("0.125", "0.375"))
ADD = node(4, "Add(inplace)", times=("0.000", "0.000"))
FC = node(6, "Linear(in_features=64, out_features=10, bias=True)", size=2600)
GRAPH = [FC, POOL, ADD, NORM, CONV, INPUT]
EDGES = ["\tnode5 -- node6", "\tnode1 -- node2", "\tnode2 -- node3", "\tnode3 -- node4", "\tnode2 -- node4"]
EDGES += ["\tnode4 -- node5"]


@pytest.fixture
def write(tmp_path):
    def to(*lines: str, name: str = "tiny.graph.txt") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines))
        return path

    return to


def test_layers_follow_the_edges_and_data_loading_is_left_out(write):
    profile = read_pipedream(write(*GRAPH, *EDGES))
    names = [layer.name for layer in profile.layers]
    assert names == ["node2.Conv2d", "node3.BatchNorm2d", "node4.Add", "node5.AvgPool2d", "node6.Linear"]
    assert (profile.name, profile.batch_size) == ("tiny", 8)
    assert [layer.forward_s for layer in profile.layers] == pytest.approx([1e-3, 0.5e-3, 0, 0.125e-3, 1e-3])
    assert [layer.backward_s for layer in profile.layers] == pytest.approx([2e-3, 0.25e-3, 0, 0.375e-3, 2e-3])


def test_parameters_become_weights_and_biases(write):
    model = read_pipedream(write(*GRAPH, *EDGES)).model()
    assert [(tensor.name, tensor.numel, tensor.layer) for tensor in model.tensors] == [
        ("node2.weight", 64 * 3 * 7 * 7, 0),
        ("node3.weight", 64, 1),
        ("node3.bias", 64, 1),
        ("node6.weight", 640, 4),
        ("node6.bias", 10, 4),
    ]


def test_the_order_of_lines_does_not_matter(write):
    one = read_pipedream(write(*GRAPH, *EDGES))
    other = read_pipedream(write(*reversed(EDGES), *reversed(GRAPH)))
    assert one == other


def test_branches_run_in_the_order_of_their_numbers(write):
    diamond = [INPUT, *(node(number, "ReLU(inplace)") for number in (2, 3, 10, 11))]
    edges = ["\tnode1 -- node10", "\tnode1 -- node2", "\tnode2 -- node3", "\tnode10 -- node11", "\tnode3 -- node11"]
    layers = read_pipedream(write(*diamond, *edges)).layers
    assert [layer.name for layer in layers] == ["node2.ReLU", "node3.ReLU", "node10.ReLU", "node11.ReLU"]


@pytest.mark.parametrize(
    ("text", "nbytes", "expected"),
    [
        ("Conv2d(64, 192, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))", 1229568, [307200, 192]),
        ("Conv2d(128, 128, kernel_size=(3, 3), stride=(1, 1), groups=32, bias=False)", 18432, [4608]),
        ("Linear(in_features=4096, out_features=1000, bias=True)", 16388000, [4096000, 1000]),
        ("Linear(in_features=8, out_features=4, bias=False)", 128, [32]),
        ("BatchNorm2d(96, eps=1e-05, momentum=0.1)", 768, [96, 96]),
        ("LSTM(1024, 1024)", 33587200, [8396800]),
        ("BatchNorm2d(96, eps=1e-05, momentum=0.1)", 800, [200]),  # the size says otherwise
    ],
)
def test_a_module_tells_its_tensors_if_its_size_agrees(text, nbytes, expected):
    assert list(module_parameters(text, nbytes).values()) == expected


def test_a_folder_names_the_model_too(write):
    assert read_pipedream(write(*GRAPH, *EDGES, name="vgg16/graph.txt")).name == "vgg16"


def test_a_list_of_activations_and_a_stage_are_read(write):
    lstm = node(2, "LSTM(4, 4)", out="[64.0; 32.0]", size=160) + " -- stage_id=0"
    profile = read_pipedream(write(INPUT, lstm, "\tnode1 -- node2"))
    assert profile.layers[0].tensors[0].numel == 40


def test_the_batch_must_be_said_where_the_input_is_not_images(write):
    path = write(node(1, "Input", out="4096.000"), FC, "\tnode1 -- node6")
    with pytest.raises(InputError, match=r"does not tell its batch size .* say it with batch_size"):
        read_pipedream(path)
    assert read_pipedream(path, batch_size=16).batch_size == 16
    with pytest.raises(InputError, match="batch size must be at least 1, got 0"):
        read_pipedream(path, batch_size=0)
    with pytest.raises(InputError, match=r"batch size must be at most 1,125,899,906,842,624, got 1.00000e\+400$"):
        read_pipedream(path, batch_size=10**400)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "not a PipeDream profile: it has no nodes"),
        (["hello"], "line 1: expected 'nodeN"),
        (['{"kind": "autobyte-profile"}'], "line 1: expected 'nodeN"),
        ([INPUT, node(2, "ReLU()", times=("-1.0", "0.0"))], "line 2: forward_compute_time must .* got -1"),
        ([INPUT, node(2, "ReLU()", times=("1.0", "nan"))], "line 2: backward_compute_time must .* got nan"),
        ([INPUT, node(2, "ReLU()", times=("inf", "1.0"))], "line 2: forward_compute_time must .* got inf"),
        ([INPUT, node(2, "ReLU()", times=("fast", "1.0"))], "line 2: forward_compute_time is not a number: 'fast'"),
        ([INPUT, node(2, "ReLU()", size=6)], "line 2: parameter_size must be whole fp32 numbers"),
        ([INPUT, "node2 -- ReLU() -- forward_compute_time=1.0"], "line 2: node2 has no backward_compute_time"),
        (
            [INPUT, node(2, "ReLU()", size=10**17)],
            "line 2: parameter_size must be at most 4,503,599,627,370,496, got",
        ),
        ([INPUT, node(2, "ReLU()", out="[1e308; 1e308]")], "line 2: activation_size must be a finite .* got inf"),
        (
            [INPUT, CONV.replace("bias", "groups=0, bias")],
            "line 2: a convolution has at least one group, got groups=0",
        ),
        ([INPUT, CONV, "", CONV], "line 4: node2 stands already in line 2"),
        ([INPUT, CONV, "\tnode1 -- node9"], "line 3: there is no node9"),
        ([INPUT, CONV, "\tnode9 -- node2"], "line 3: there is no node9"),
        ([INPUT, CONV, "\tnode2 -- node2"], "line 3: node2 comes before itself"),
        ([*GRAPH, *EDGES, "\tnode4 -- node3"], "node[34] comes before itself: the edges form a cycle"),
        ([INPUT], "has an input and no layers"),
    ],
)
def test_a_broken_file_is_one_line_that_names_it(write, lines, message):
    path = write(*lines)
    with pytest.raises(FileError, match=message) as caught:
        read_pipedream(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_a_file_that_is_absent_or_not_text(tmp_path):
    with pytest.raises(FileError, match=r"cannot read .*absent.txt: No such file"):
        read_pipedream(tmp_path / "absent.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="binary is not a PipeDream profile: not text"):
        read_pipedream(tmp_path / "binary")


@pytest.mark.parametrize(
    ("name", "batch_size", "parameters"),
    [
        ("alexnet", 256, 61_100_840),
        ("densenet121", 64, 7_978_856),
        ("resnet18", 256, 11_689_512),
        ("resnet50", 128, 25_557_032),
        ("resnet101", 64, 44_549_160),
        ("resnext50", 128, 25_028_904),
        ("squeezenet1_0", 256, 1_248_424),
        ("vgg16", 128, 138_357_544),
    ],
)
def test_the_real_profiles_have_the_published_parameters(name, batch_size, parameters):
    if not os.environ.get("AUTOBYTE_DATA"):
        pytest.skip("set AUTOBYTE_DATA to a folder with pipedream/*.graph.txt to read the real profiles")
    profile = read_pipedream(Path(os.environ["AUTOBYTE_DATA"]) / "pipedream" / f"{name}.graph.txt")
    assert (profile.name, profile.batch_size, profile.model().parameters) == (name, batch_size, parameters)
    assert not any(tensor.name.endswith(".parameters") for tensor in profile.model().tensors)
