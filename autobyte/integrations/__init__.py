"""The loops of other libraries, with AutoByte in place of DDP; each is imported by name, and needs an extra.

    accelerate.py      Hugging Face Accelerate: `prepare(accelerator, model, optimizer, …)`
    trainer.py         transformers: `attach(trainer)`
    lightning.py       Lightning: `Trainer(strategy="autobyte")`
    fabric.py          Lightning Fabric: `Fabric(strategy="autobyte")`

`closures.py` has what Lightning's two strategies share, `passes.py` what backward passes have in common, and
`versions.py` the versions that were tried.
"""
