"""`autobyte profile`: measure a model of your own, layer by layer."""

from pathlib import Path
from typing import Annotated

import typer

from autobyte.cli.options import JsonOption


def profile(
    *,
    source: Annotated[str, typer.Argument(help="FILE.py:FUNCTION, where the function makes the model")],
    inputs: Annotated[
        str,
        typer.Option(
            "--input",
            help="input shape: 32,3,224,224 for floats, int64:8,128<50257 for tokens; separate several inputs by ;",
        ),
    ] = "",
    device: Annotated[str, typer.Option("--device", help="cpu or cuda")] = "cpu",
    out: Annotated[Path, typer.Option("--out", help="file to write")] = Path("profile.json"),
    name: Annotated[
        str, typer.Option("--name", help="name of the model; default: the name of --out without .json")
    ] = "",
    warmup: Annotated[int, typer.Option("--warmup", help="passes before the measured ones")] = 3,
    repeats: Annotated[int, typer.Option("--repeats", help="measured passes, of which medians are taken")] = 10,
    force: Annotated[bool, typer.Option("--force", help="replace the file if it exists")] = False,
    json: JsonOption = False,
) -> None:
    """Measure a model of your own, layer by layer.

    Writes the forward and backward times of a torch module to a JSON file, which other commands take as --model.

    Example: autobyte profile examples/small_vgg.py:make_model --input 16,3,64,64 --out small_vgg.json
    """
    from autobyte.cli.console import print_json, print_line, progress, warn
    from autobyte.errors import FileError, InputError
    from autobyte.testbed.load import OtherLoad, is_busy
    from autobyte.torch.profiling.profile import profile_model
    from autobyte.torch.profiling.source import load_factory, make_input
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
    with progress("profiling") as step, OtherLoad() as others:
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
    if is_busy(others.cores, others.wall_s):
        measured.provenance["other_cores"] = round(others.cores, 2)  # so that `doctor` knows, too
        warn(
            f"others kept {others.cores:.1f} cores of this machine busy meanwhile: times are not to be trusted; "
            "measure again on an idle machine"
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
