"""fscil backbones: which pretrained networks are there, their size, their speed here and their accuracy."""

from typing import Annotated

import typer

from fscil.cli.options import Quiet, say
from fscil.cli.output import table
from fscil.runtime.extras import install_command

commands = typer.Typer()


@commands.command()
def backbones(
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="Measure how long an image takes here.")] = True,
    quiet: Quiet = False,
) -> None:
    """List the pretrained networks: what is installed, size, speed on this machine, accuracy on birds.

    The accuracy was measured with benchmarks/backbones.py on CUB-200: last session of 100 + 10 x 10 classes, 5 photos
    or 1 of each new class (results/backbones.md). Use one: fscil fit DIR -o MODEL --backbone NAME.

    Example: fscil backbones

    Example: fscil fit photos/birds -o birds.fscil --backbone efficientnet_lite2
    """
    from fscil.classifier.backbones import catalog

    rows, missing = [], dict[str, None]()  # a dict, as an ordered set
    for each in catalog(speed, quiet):
        state = "installed" if each.installed else f"needs the extra {each.extra}"
        parameters = f"{each.parameters / 1e6:.1f} million" if each.parameters else ""
        taken = f"{each.milliseconds:.0f} ms ({each.engine})" if each.milliseconds else ""
        shots = [f"{each.measured[key]:.1f}%" if each.measured else "" for key in ("5-shot", "1-shot")]
        if each.extra and not each.installed:
            missing[each.extra] = None
        rows.append([each.name, state, parameters, f"{each.pixels} px", taken, *shots])
    table(["network", "state", "parameters", "image", "one image", "birds, 5 photos", "1 photo"], rows)
    for extra in missing:
        say(f"The extra {extra}: {install_command(extra)}")
    say(
        f"With a connection, any network of timm: {install_command('timm')}, then --backbone timm:NAME. Recommended: "
        "timm:vit_small_patch14_dinov2.lvd142m (DINOv2-small; not measured here)."
    )
