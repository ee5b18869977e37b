"""Models from a file, inputs from their shapes."""

from pathlib import Path

import pytest
import torch

from autobyte.errors import InputError
from autobyte.torch.profiling.profile import profile_model
from autobyte.torch.profiling.source import load_factory, make_input

EXAMPLE = Path(__file__).parents[3] / "examples" / "small_vgg.py"

FACTORIES = """
import torch
from torch import nn
from neighbour import WIDTH

def plain(): return nn.Linear(WIDTH, 2)
def fed(): return nn.Linear(WIDTH, 2), torch.ones(3, WIDTH)
def full(): return nn.Linear(WIDTH, 2), torch.ones(3, WIDTH), lambda outputs: outputs.sum()
def fails(): raise ValueError("no weights\\nat all")
def number(): return 5
def four(): return nn.Linear(1, 1), 1, 2, 3
def bad_loss(): return nn.Linear(1, 1), torch.ones(1, 1), 3
def needs(width): return nn.Linear(width, 2)
constant = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 4\n")
    (tmp_path / "model.py").write_text(FACTORIES)
    return tmp_path / "model.py"


def test_a_factory_returns_a_model_maybe_inputs_maybe_a_loss(file: Path) -> None:
    plain, fed, full = (load_factory(f"{file}:{name}") for name in ("plain", "fed", "full"))
    assert (plain.inputs, plain.loss, fed.loss) == (None, None, None)
    profile = profile_model(full.model, full.inputs, loss=full.loss, warmup=1, repeats=1)
    assert profile.batch_size == fed.inputs.shape[0] == 3


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("plan", r"unknown function in .*model\.py 'plan'; did you mean 'plain'\?"),
        ("constant", r"'constant' in .*model\.py is int, not a function"),
        ("fails", r":fails failed: ValueError: no weights$"),
        ("needs", r":needs failed: TypeError: needs\(\) missing 1 required positional argument: 'width'$"),
        ("number", r"must return a module, \(module, inputs\) or \(module, inputs, loss\), got int$"),
        ("four", r"got a tuple of 4$"),
        ("bad_loss", r"returned a loss that is int, not a function$"),
    ],
)
def test_a_factory_that_cannot_be_used_is_said(file: Path, function: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_factory(f"{file}:{function}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise SystemExit(3)", r"model\.py failed: SystemExit: 3$"),
        ("def (", r"model\.py failed: SyntaxError: "),
        ("import nowhere_to_be_found", r"model\.py failed: ModuleNotFoundError: No module named 'nowhere"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_said(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_factory(f"{file}:plain")


@pytest.mark.parametrize("spec", ["model.py", ":make", "model.py:", ""])
def test_a_spec_that_cannot_be_read_is_said(spec: str) -> None:
    with pytest.raises(InputError, match=r"write it like model\.py:make_model"):
        load_factory(spec)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file: .*absent\.py$"):
        load_factory(f"{tmp_path}/absent.py:make")


def test_inputs_by_their_shapes() -> None:
    images, tokens, halves = make_input("2,3,8,8; int64:4,16<50 ;float16:5", dtype="float64")
    assert (images.shape, images.dtype) == ((2, 3, 8, 8), torch.float64)
    assert (tokens.shape, tokens.dtype) == ((4, 16), torch.int64)
    assert 0 <= tokens.min() < tokens.max() < 50
    assert (halves.shape, halves.dtype) == ((5,), torch.float16)


def test_the_same_text_makes_the_same_inputs() -> None:
    state = torch.get_rng_state()
    assert torch.equal(make_input("4,4")[0], make_input("4,4")[0])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read input ''; write it like 32,3,224,224"),
        ("3x224", "cannot read input '3x224'"),
        ("-1,4", "cannot read input '-1,4'"),
        ("3,4;", "cannot read input ''"),
        ("0,4", "input '0,4' has a dimension of size 0"),
        ("int46:3<9", "unknown input dtype 'int46'; did you mean 'int64'?"),
        ("int64:3", "input 'int64:3' needs a bound of at least 1"),
        ("int64:3<0", "needs a bound of at least 1"),
        ("3,4<5", "only integers have a bound"),
    ],
)
def test_a_shape_that_cannot_be_read_is_said(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        make_input(text)
    assert message in str(error.value)


def test_the_example_is_a_model_of_ten_million_parameters() -> None:
    model = load_factory(f"{EXAMPLE}:make_model").model
    profile = profile_model(model, make_input("2,3,64,64"), warmup=1, repeats=1).model()
    assert profile.parameters == sum(p.numel() for p in model.parameters()) == 10_006_180
    assert len(profile.layers) == 13
