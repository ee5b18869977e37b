"""The layer tables against what others published, and against torch."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autobyte import models
from autobyte.errors import FileError, InputError
from autobyte.models import ops, transformers, vision
from autobyte.models.pipedream import read_graph
from autobyte.models.profile import Profile
from autobyte.models.roofline import BACKWARD, FORWARD, backward_s, forward_s

# torchvision and Hugging Face: parameters, and tensors in `named_parameters()`.
PUBLISHED = {
    "resnet50": (25_557_032, 161),
    "vgg16": (138_357_544, 32),
    "alexnet": (61_100_840, 16),
    "densenet121": (7_978_856, 364),
    "bert-base": (109_482_240, 199),
    "bert-large": (335_141_888, 391),
    "gpt2": (124_439_808, 148),
}


def test_the_seven_models_are_known_in_order():
    assert models.names() == list(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_tensors_are_the_published_ones(name):
    model = models.load(name)
    assert (model.parameters, len(model.tensors)) == PUBLISHED[name]
    assert len({tensor.name for tensor in model.tensors}) == len(model.tensors)


@pytest.mark.parametrize(
    ("name", "gmacs"), [("resnet50", 4.09), ("vgg16", 15.47), ("alexnet", 0.71), ("densenet121", 2.83)]
)
def test_flops_are_those_torchvision_publishes(name, gmacs):
    assert models.describe(name).flops == pytest.approx(2e9 * gmacs, rel=0.02)


@pytest.mark.parametrize(
    ("name", "looked_up", "layers", "hidden", "length"),
    [
        ("bert-base", (30522 + 512 + 2) * 768, 12, 768, 128),
        ("bert-large", (30522 + 512 + 2) * 1024, 24, 1024, 128),
        ("gpt2", 1024 * 768, 12, 768, 1024),  # the tied embedding is multiplied once, as the head
    ],
)
def test_flops_of_transformers_follow_the_closed_form(name, looked_up, layers, hidden, length):
    weights = PUBLISHED[name][0] - looked_up
    attention = 4 * layers * hidden * length  # PaLM (arXiv 2204.02311), appendix B: a third of 12 L H Q T
    assert models.describe(name).flops == pytest.approx(length * (2 * weights + attention), rel=0.01)


def _torch_vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        channels = width or channels
    head = [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()]
    return _Classifier(layers, [*head, nn.Linear(4096, 1000)])


def _torch_alexnet() -> nn.Module:
    pool = nn.MaxPool2d(3, 2)
    layers = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), pool, nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), pool]
    for channels, width in ((192, 384), (384, 256), (256, 256)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
    head = [nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()]
    return _Classifier([*layers, pool], [*head, nn.Linear(4096, 1000)])


class _Classifier(nn.Module):
    def __init__(self, layers: list[nn.Module], head: list[nn.Module]) -> None:
        super().__init__()
        self.features, self.classifier = nn.Sequential(*layers), nn.Sequential(*head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).flatten(1))


@pytest.mark.parametrize(("name", "build"), [("vgg16", _torch_vgg16), ("alexnet", _torch_alexnet)])
def test_names_sizes_and_flops_are_those_of_the_torch_model(name, build):
    with torch.device("meta"):
        module, image = build(), torch.empty(1, 3, 224, 224)
        with FlopCounterMode(display=False) as counter:
            module(image)
    expected = [(parameter, value.numel()) for parameter, value in module.named_parameters()]
    assert [(tensor.name, tensor.numel) for tensor in models.load(name).tensors] == expected
    assert models.describe(name).flops == counter.get_total_flops()


def test_resnet50_fills_the_buckets_that_ddp_was_seen_to_fill():
    # A Kineto trace of two A100 in HolisticTraceAnalysis (ddp_resnet50): first bucket 1 MiB, then 25 MiB.
    def buckets() -> Iterator[int]:
        held, limit = 0, 1 << 20
        for tensor in reversed(models.load("resnet50").tensors):
            held += tensor.numel
            if 4 * held >= limit:
                yield held
                held, limit = 0, 25 << 20
        yield held

    assert list(buckets()) == [2049000, 7875584, 6563840, 6637568, 2431040]


def test_a_block_of_resnet50_is_named_and_ordered_like_torchvision():
    names = [tensor.name for tensor in models.load("resnet50").tensors]
    assert names[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight"]
    assert names[9:16] == [
        "layer1.0.conv3.weight",
        "layer1.0.bn3.weight",
        "layer1.0.bn3.bias",
        "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.weight",
        "layer1.0.downsample.1.bias",
        "layer1.1.conv1.weight",
    ]
    assert names[-2:] == ["fc.weight", "fc.bias"]


def test_gpt2_ties_its_head_to_the_first_layer():
    model = models.load("gpt2")
    assert model.tensors[0].name == "transformer.wte.weight"
    assert (model.tensors[0].numel, model.tensors[0].layer) == (50257 * 768, 0)
    assert model.layers[-1].name == "lm_head"
    assert model.layers[-1].tensors == ()
    assert model.layers[-1].forward_s > 0.1 * model.forward_s.sum()  # 39 of 124 million weights


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_layer_takes_time_and_backward_takes_longer(name):
    model = models.load(name)
    assert model.forward_s.min() > 0
    assert model.backward_s.min() > 0
    assert 1.5 < model.backward_s.sum() / model.forward_s.sum() < 2.5


# NVIDIA DeepLearningExamples, one V100, fp32: samples/s of whole steps, with the optimizer and BERT's heads.
@pytest.mark.parametrize(
    ("network", "samples_per_s"),
    [
        (vision.resnet50(batch_size=128), 367),  # ConvNets/resnet50v1.5, 21.03
        (transformers.bert_large(batch_size=8), 33.4),  # LanguageModeling/BERT, 19.07
        (transformers.bert_large(batch_size=32), 43.5),
    ],
)
def test_speed_is_near_what_was_measured_on_a_v100(network, samples_per_s):
    assert network.batch_size / network.model().compute_s == pytest.approx(samples_per_s, rel=0.2)


def test_an_operation_is_bound_by_computing_or_by_memory():
    wide, narrow = ops.matmul(4096, 4096, 4096), ops.matmul(4096, 1, 4096)
    rate = FORWARD["matmul"]
    assert forward_s(wide) == pytest.approx(rate.overhead_s + 2 * 4096**3 / rate.flops_per_s)
    assert forward_s(narrow) == pytest.approx(rate.overhead_s + 4 * (2 * 4096 + 4096**2) / rate.bytes_per_s)
    assert backward_s(wide) == pytest.approx(
        BACKWARD["matmul"].overhead_s + 4 * 4096**3 / BACKWARD["matmul"].flops_per_s
    )


def test_plain_convolutions_and_products_stay_below_the_peak_of_a_v100():
    for rates in (FORWARD, BACKWARD):
        assert all(rates[kind].flops_per_s < 15.7e12 for kind in ("conv1x1", "conv", "matmul"))
        assert all(rate.bytes_per_s < 900e9 for rate in rates.values())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="unknown model 'resnet5'; did you mean 'resnet50'"):
        models.load("resnet5")


def test_a_model_is_made_once():
    assert models.load("alexnet") is models.load("alexnet")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_description_sums_the_model_up(name):
    model, row = models.load(name), models.describe(name)
    assert (row.name, row.parameters, row.batch_size) == (name, model.parameters, model.batch_size)
    assert row.forward_s + row.backward_s == pytest.approx(model.compute_s)
    assert "PipeDream" in row.provenance
    assert ("extrapolated" in row.provenance) == (name in ("bert-base", "bert-large", "gpt2"))


def test_the_documented_table_is_the_described_one():
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    for row in map(models.describe, models.names()):
        sizes = [f"{row.parameters:,}", str(row.tensors), str(row.layers)]
        batch = f"{row.batch_size} x {'x'.join(map(str, row.sample))}"
        times = [f"{row.flops / 2e9:.2f}", f"{row.forward_s * 1e3:.1f}", f"{row.backward_s * 1e3:.1f}"]
        assert [row.name, *sizes, batch, *times] in [cells[:8] for cells in rows]


def test_looking_models_up_loads_neither_torch_nor_pydantic():
    code = (
        "import sys; from autobyte import models; models.load('gpt2'); print({'torch', 'pydantic'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def _profile(name: str) -> Path:
    if not os.environ.get("AUTOBYTE_DATA"):
        pytest.skip("set AUTOBYTE_DATA to a folder with pipedream/*.graph.txt to compare with the measured profiles")
    return Path(os.environ["AUTOBYTE_DATA"]) / "pipedream" / f"{name}.graph.txt"


@pytest.mark.parametrize(
    ("name", "batch_size", "within"),
    [("resnet50", 128, 0.05), ("vgg16", 128, 0.05), ("alexnet", 256, 0.18), ("densenet121", 64, 0.05)],
)
def test_times_and_sizes_are_near_the_measured_profile(name, batch_size, within):
    nodes = [node for node in read_graph(_profile(name)).order() if not node.loads]
    network = getattr(vision, name)(batch_size=batch_size)
    sizes = [4 * sum(module.parameters.values()) for module in network.modules]
    assert [node.parameter_bytes for node in nodes if node.parameter_bytes] == sizes
    modules = sum(node.forward_s > 0 for node in nodes)
    added = 0.249e-3 * modules + batch_size * 3 * 224 * 224 * 4 / 8.01e9
    measured = sum(node.forward_s + node.backward_s for node in nodes) - added
    assert network.model().compute_s == pytest.approx(measured, rel=within)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"forward_s": -1e-3}, r"layers\.0\.forward_s: Input should be greater than or equal to 0 \(got -0\.001\)"),
        ({"backward_s": float("nan")}, r"layers\.0\.backward_s: Input should be a finite number"),
        ({"forward_s": None}, r"layers\.0\.forward_s: Input should be a valid number \(got None\)"),
        ({"backward_s": ...}, r"layers\.0\.backward_s: Field required"),
    ],
    ids=["negative", "not a number", "null", "missing"],
)
def test_a_profile_with_impossible_times_is_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    layer = {"name": "a", "forward_s": 1e-3, "backward_s": 2e-3, "tensors": [{"name": "w", "numel": 4}]} | wrong
    layer = {key: value for key, value in layer.items() if value is not ...}
    profile = {"kind": "autobyte-profile", "schema": 1, "name": "x", "batch_size": 1, "provenance": {}}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(profile | {"layers": [layer]}))
    with pytest.raises(FileError, match=rf"^profile {path}: {message}"):
        Profile.load(path)
