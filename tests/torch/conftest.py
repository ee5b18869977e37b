"""What trains ranks and names no engine is tested over host memory, and on streams as a GPU has them."""

import pytest

#: Where no test is of an engine's own ways, nor loops over engines itself
TRAINING = ("checkpoints", "clipping", "gradients", "models", "reads", "runs", "traps", "ways")
MODULES = {"test_join", *(f"test_optimizer_{name}" for name in TRAINING)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let `engine="auto"` stand for either, as it stands for `nccl` where there are GPUs.

    What is compiled takes long, and has nothing to do with engines.
    """
    if "compil" in metafunc.function.__name__:
        return
    if metafunc.definition.path.stem in MODULES and not {"engine", "auto_is"} & set(metafunc.fixturenames):
        metafunc.fixturenames.append("auto_is")
        metafunc.parametrize("auto_is", ["allreduce", "ordered"], indirect=True)


@pytest.fixture
def auto_is(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `engine="auto"` stands for on ranks that the test starts."""
    monkeypatch.setenv("AUTOBYTE_ENGINE", request.param)
