"""`autobyte profile`: measure a model of your own, layer by layer."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption


def profile(
    *,
    source: Annotated[
        str, typer.Argument(help="a Python file and the function in it that makes the model: f.py:make")
    ],
    inputs: Annotated[
        str, typer.Option("--input", help="32,3,224,224 for floats, int64:8,128<50257 for tokens, ; between several")
    ] = "",
    device: Annotated[str, typer.Option("--device", help="cpu or cuda")] = "cpu",
    out: Annotated[Path, typer.Option("--out", help="where the profile goes")] = Path("profile.json"),
    name: Annotated[
        str, typer.Option("--name", help="what to call the model; default: as --out, without .json")
    ] = "",
    warmup: Annotated[int, typer.Option("--warmup", help="passes that do not count")] = 3,
    repeats: Annotated[int, typer.Option("--repeats", help="passes that the medians are taken over")] = 10,
    force: Annotated[bool, typer.Option("--force", help="replace a profile that is there already")] = False,
    json: JsonOption = False,
) -> None:
    """Measure a model of your own, layer by layer.

    Forward and backward times of any torch module, written as a profile: a JSON file that --model takes.

    Example: autobyte profile examples/small_vgg.py:make_model --input 16,3,64,64 --out small_vgg.json
    """
    from autobyte.cli.console import print_json, print_line, progress
    from autobyte.errors import FileError, InputError
    from autobyte.torch.profile import profile_model
    from autobyte.torch.source import load_factory, make_input
    from autobyte.units import format_bytes, format_seconds

    if out.exists() and not force:  # before minutes are spent
        raise FileError(f"{out} exists already; choose another name or say --force")
    if not out.parent.is_dir():
        raise FileError(f"cannot write {out}: there is no folder {out.parent}")
    factory = load_factory(source)
    fed = make_input(inputs) if inputs else factory.inputs
    if fed is None:
        raise InputError(
            "what goes into the model? say --input 32,3,224,224, or let the function return (model, inputs)"
        )
    with progress("profiling") as step:
        measured = profile_model(
            factory.model,
            fed,
            loss=factory.loss,
            device=device,
            warmup=warmup,
            repeats=repeats,
            name=name or out.stem,
            progress=step,
        )
    measured.save(out, replace=force)
    if json:
        print_json(measured.model_dump(by_alias=True))
        return
    model = measured.model()
    size = format_bytes(sum(4 * t.numel for t in model.tensors))
    spread = float(measured.provenance["spread"])
    print_line(f"{measured.name}: {len(model.layers)} layers, {len(model.tensors)} tensors, {model.parameters:,} "
               f"parameters ({size} in fp32), batch {model.batch_size}")  # fmt: skip
    print_line(f"forward {format_seconds(float(model.forward_s.sum()))}, "
               f"backward {format_seconds(float(model.backward_s.sum()))}, "
               f"on {measured.provenance['device_name']}; spread of the step {100 * spread:.0f} %")  # fmt: skip
    if spread > 0.2:
        print_line("the steps differ a lot: measure again on an idle machine")
    print_line(f"written to {out}; next: autobyte compare --model {out} --bandwidth 1Gbit --out out/{out.stem}")
