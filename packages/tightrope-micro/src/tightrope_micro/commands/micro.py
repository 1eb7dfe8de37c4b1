"""The commands ``tightrope micro compile`` and ``tightrope micro profile``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec.structs import replace

from tightrope.cli import show
from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.core import Bytes, Machine, TightropeError, parse_bytes
from tightrope_micro.commands import sensor

if TYPE_CHECKING:
    from tightrope_micro import CompiledStep, Profile
    from tightrope_micro.infer import CompiledNet, FloatNet
    from tightrope_micro.integer.net import IntegerNet
    from tightrope_micro.paging.economy import Economy

_COMPILE = """\b
Examples:
  tightrope micro compile step.py:build --machine nrf52840 --ram 240KiB -o OUT/
  tightrope micro compile step.py:build --machine stm32f746 --ram 128KiB --stack 1KiB -o OUT/ --json
  tightrope micro compile step.py:build --ram 240KiB --objective joules --seconds 40 -o OUT/
  tightrope micro compile step.py:build --ram 64KiB --sparse --seconds 8 -o OUT/
  tightrope micro compile net.py:build --infer --ram 128KiB -o OUT/
  tightrope micro compile net.onnx --infer --ram 128KiB -o OUT/
  tightrope micro compile net.tflite --infer --ram 64KiB -o OUT/
  tightrope micro compile net.py:build --integer --ram 32KiB --flash 256KiB -o OUT/
  tightrope micro compile net.py:build --integer --core cortex-m3 --ram 32KiB -o OUT/"""
_PROFILE = """\b
Examples:
  tightrope micro profile OUT/
  tightrope micro profile OUT/ --json"""

_StreamError = Annotated[
    float | None,
    typer.Option(
        help="Of --integer: sums read 8 bits where the error of the result grows by at most this share; "
        "default 0.01."
    ),
]
_Kernels = tuple[str, bool, float | None]
"""A core, whether floats may be taken, and by how much 8-bit sums may raise the error."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    micro = typer.Typer(
        help="Training steps, inference, classifiers of sensor data, as C for a microcontroller; measured.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    micro.command(
        "compile",
        short_help="Plan a step or a forward under a limit on RAM and write it as C.",
        epilog=_COMPILE,
    )(compile_command)
    micro.command("profile", short_help="Measure a compiled step.", epilog=_PROFILE)(profile_command)
    sensor.register(micro)
    app.add_typer(micro, name="micro", short_help="Training steps as C for microcontrollers.")


def compile_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="A function that returns (model, inputs, optimizer); with --infer (model, inputs), with "
            "--integer (model, inputs, samples). With --infer also net.onnx, or net.tflite in int8.",
        ),
    ],
    ram: Annotated[str, typer.Option(help="All RAM of the step, stack included, such as 240KiB.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    machine: Annotated[str, typer.Option(help="A profile with a slower tier, or a TOML file.")] = "nrf52840",
    stack: Annotated[str, typer.Option(help="Bytes of it for the stack.")] = "2KiB",
    objective: Annotated[
        Literal["seconds", "joules"], typer.Option(help="Of a step: what is least, as modelled.")
    ] = "seconds",
    seconds: Annotated[float | None, typer.Option(help="Of a step: its largest modelled time.")] = None,
    joules: Annotated[float | None, typer.Option(help="Of a step: its largest modelled energy.")] = None,
    recompute: Annotated[
        bool, typer.Option(help="Of a step: run ops again where that is cheaper than to page what they made.")
    ] = True,
    infer: Annotated[bool, typer.Option("--infer", help="Inference alone, weights in flash.")] = False,
    integer: Annotated[
        bool, typer.Option("--integer", help="Inference in integers, quantized after training.")
    ] = False,
    flash: Annotated[
        str | None, typer.Option(help="Flash for code and constants; default: the machine's.")
    ] = None,
    pages: Annotated[
        bool,
        typer.Option(
            help="Let activations go to the slower tier. Without it, weights are cut into tiles, ops run "
            "again, and inference runs in bands of rows, where that does."
        ),
    ] = True,
    core: Annotated[
        str,
        typer.Option(
            help="Of --integer: whose counted costs choose each kernel: cortex-m4f, cortex-m3, armv7-neon, "
            "x86-64-v3, auto (the machine's) or none."
        ),
    ] = "auto",
    floats: Annotated[
        bool,
        typer.Option(
            "--float-kernels",
            help="Of --integer: take float softmax, GELU and layer norm where they cost less.",
        ),
    ] = False,
    stream_error: _StreamError = None,
    sparse: Annotated[
        bool,
        typer.Option(
            "--sparse", help="Of a step, update only the parameters that gain most within the limits."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Capture a whole training step, plan it under a limit on all RAM, and write it as a C library.

    With --infer or --integer: a forward instead of a step. The folder is written whole or not at all. Exit
    code 3: an op needs more than the limit, or the step more flash, time or energy.
    """
    asked_of_step = objective != "seconds" or seconds is not None or joules is not None
    _check_options(
        step=not (infer or integer), integer=integer, sparse=sparse, limits=asked_of_step,
        kernels=core != "auto" or floats or stream_error is not None, recompute=recompute,
    )  # fmt: skip
    _check_sizes(output, ram=ram, stack=stack, flash=flash)
    _check_target(target, infer=infer)
    if infer or integer:
        kernels = (core, floats, stream_error) if integer else None
        found = _inference(target, _profile(machine, flash), (ram, stack), kernels, pages=pages)
        return _kept(output, found, json)
    from tightrope_micro.paging.economy import Economy

    asked = Economy(objective=objective, seconds=seconds, joules=joules, reruns=recompute, pages=pages)
    _kept(output, _step(target, _profile(machine, flash), (ram, stack), asked, sparse=sparse), json)


def _profile(machine: str, flash: str | None) -> Machine:
    """The machine that is named, with another size of flash where one is."""
    from tightrope.cli.machines import find_machine

    found = find_machine(machine)
    return found if flash is None else replace(found, flash=parse_bytes(flash))


def _kept(output: Path, compiled: "CompiledStep | CompiledNet", json: bool) -> None:
    """Write what fits the flash, and say what it promises."""
    from tightrope.run.base.status import StatusLine
    from tightrope_micro.emulate import COMPILER
    from tightrope_micro.flash import check_flash

    with StatusLine().slow("linking"):
        linked = check_flash(compiled)
    compiled.write(output)
    if linked is None and compiled.manifest.flash:
        StatusLine().say(f"flash: the code was not linked, as {COMPILER} is not there; the constants fit")
    _say(output, compiled, linked, json)


def _check_target(target: str, *, infer: bool) -> None:
    """Refuse a net in ONNX or of TensorFlow Lite where samples or an optimizer are needed."""
    if target.endswith(".tflite") and not infer:
        raise TightropeError(f"{target!r} is a net that is trained and quantized: give --infer with it.")
    if target.endswith(".onnx") and not infer:
        raise TightropeError(
            f"{target!r} is a net without samples and an optimizer: give --infer with it. For --integer, "
            "write FILE.py:FUNCTION that returns (model, inputs, samples), the first two from "
            "tightrope_micro.onnx_net.load_onnx."
        )


def _check_sizes(output: Path, **sizes: str | None) -> None:
    """Refuse a folder that cannot be written, and sizes that are none, before any work."""
    from tightrope_micro.compile import check_new

    check_new(output)
    for name, text in sizes.items():
        if text is not None:
            parse_bytes(text, name=f"--{name}")


def _check_options(
    *, step: bool, integer: bool, kernels: bool, sparse: bool, limits: bool, recompute: bool
) -> None:
    """Refuse options of one kind of compilation for another.

    Raises:
        TightropeError: names them.
    """
    if not integer and kernels:
        raise TightropeError(
            "--core, --float-kernels and --stream-error are of integers: give --integer with them."
        )
    if step:
        return
    if sparse:
        raise TightropeError("--sparse chooses what a step updates: leave out --infer and --integer.")
    if limits:
        raise TightropeError(
            "--objective, --seconds and --joules are of a training step. Leave them out with --infer and "
            "--integer, which compute every op once where RAM allows it."
        )
    if not recompute:
        raise TightropeError(
            "--no-recompute is of a training step. Inference runs ops again only where activations have to "
            "be paged; --no-pages leaves out both."
        )


def _step(
    target: str, profile: Machine, limits: tuple[str, str], economy: "Economy", *, sparse: bool
) -> "CompiledStep":
    from tightrope.run.base.status import StatusLine
    from tightrope_micro.commands.target import build_trained

    made = build_trained(target)
    from tightrope_micro import capture_step, compile_step
    from tightrope_micro.choose import choose_updates, gains_of

    step = capture_step(made.model, made.args, made.optimizer, **made.kwargs)
    ram, stack = map(parse_bytes, limits)
    with StatusLine().slow("planning the step"):
        if sparse:
            gains = gains_of(made.model, [made.args], **made.kwargs)
            found = choose_updates(step, profile, gains, ram=ram, stack=stack, economy=economy).compiled
        else:
            found = compile_step(step, profile, ram=ram, stack=stack, economy=economy)
    return found


def _say(output: Path, compiled: "CompiledStep | CompiledNet", linked: Bytes | None, json: bool) -> None:
    flash = {"flash_limit": compiled.manifest.flash} if compiled.manifest.flash else {}
    flash |= {} if linked is None else {"flash": linked}
    promised = {**_promises(compiled), **flash}
    if json:
        emit_json({"folder": str(output), **promised})
    else:
        show.rows(console(), ("what", "promised"), [(k, str(v)) for k, v in promised.items()])


def _inference(
    target: str,
    profile: Machine,
    limits: tuple[str, str],
    kernels: _Kernels | None,
    *,
    pages: bool,
) -> "CompiledNet":
    from tightrope.run.base.status import StatusLine
    from tightrope_micro.integer.costs import check_core, core_of

    if kernels is not None and kernels[0] not in ("auto", "none"):
        check_core(kernels[0])
    asked = {"auto": core_of(profile.name), "none": ""}
    found = _net(target, None if kernels is None else (asked.get(kernels[0], kernels[0]), *kernels[1:]))
    from tightrope_micro.infer import compile_net

    with StatusLine().slow("planning the net"):
        ram, stack = map(parse_bytes, limits)
        return compile_net(found, profile, ram=ram, stack=stack, pages=pages)


def _net(target: str, kernels: _Kernels | None) -> "FloatNet | IntegerNet":
    """Read or capture a net; with what an integer one is made by, quantize it."""
    if target.endswith(".tflite"):
        from tightrope_micro.tflite import load_tflite

        return load_tflite(target)
    from tightrope.run.base.status import StatusLine
    from tightrope_micro.commands.target import build_calibrated

    made = build_calibrated(target)
    from tightrope_micro.infer import capture_net, ranges_of
    from tightrope_micro.integer.streams import STREAM_ERROR, quantize_within

    net = capture_net(made.model, made.args)
    if kernels is None:
        return net
    if not made.samples:
        raise TightropeError(
            f"{target!r} returns no samples to calibrate ranges. Return (model, inputs, "
            "samples): some hundred inputs like those that the device will get."
        )
    with StatusLine().slow("quantizing the net"):
        core, floats, error = kernels
        budget = STREAM_ERROR if error is None else error
        ranges = ranges_of(net, made.samples)
        return quantize_within(net, ranges, made.samples, budget, core=core, floats=floats)


def profile_command(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="That compile, dsp or tune wrote.")],
    json: Json = False,
) -> None:
    """Build what was written for this computer and for an emulated board, run it, and count.

    Exit code 3: something is not as promised, or nothing could be built.
    """
    from tightrope_micro import profile
    from tightrope_micro.sensor.library import read_sensor_manifest

    if (sensed := read_sensor_manifest(folder)) is not None:
        return sensor.profile_sensor(folder, sensed, json)
    found = profile(folder)
    if json:
        emit_json(_measured(found))
    else:
        _print(found)
    if not found.holds:
        raise typer.Exit(DOES_NOT_FIT)


def _promises(compiled: "CompiledStep | CompiledNet") -> dict[str, Any]:
    manifest = compiled.manifest
    stack = getattr(compiled, "fast_stack", 0)
    net, forms = manifest.net, getattr(getattr(compiled, "net", None), "forms", {})
    return {
        "machine": manifest.machine,
        "ram_limit": manifest.ram,
        "ram": manifest.total,
        "arena": manifest.arena,
        "counters": manifest.static,
        "stack": manifest.stack,
        "storage": manifest.storage,
        "pages_in": manifest.pages.pages_in,
        "bytes_in": manifest.pages.bytes_in,
        "pages_out": manifest.pages.pages_out,
        "bytes_out": manifest.pages.bytes_out,
        "kernels": manifest.num_ops,
        "run_again": manifest.num_ops - len(compiled.planned.tiled.graph.ops),
        "seconds_modelled": round(manifest.seconds, 6),
        "joules_modelled": round(manifest.joules, 6),
        **({"updated": ", ".join(manifest.updated)} if manifest.updated else {}),
        **({"stack_for_speed": stack} if stack else {}),
        **({} if net is None else {"constants": net.constants, "output": f"{net.output.dtype}"}),
        **({"forms": {op: str(form) for op, form in forms.items()}} if forms else {}),
    }


def _measured(found: "Profile") -> dict[str, Any]:
    promised, pages = found.manifest, found.pages
    return {
        "holds": found.holds,
        "ram_limit": promised.ram,
        "arena": {"promised": promised.arena, "measured": found.arena},
        "static": {"promised": promised.arena + promised.static, "measured": found.static},
        "stack": {"promised": promised.stack, "measured": found.stack},
        "ram": {"promised": promised.total, "measured": found.ram},
        **{
            name: {
                "promised": getattr(promised.pages, name),
                "measured": None if pages is None else getattr(pages, name),
            }
            for name in ("pages_in", "bytes_in", "pages_out", "bytes_out")
        },
        "rom": found.rom,
        "instructions": found.instructions,
        "seconds_modelled": promised.seconds,
        "joules_modelled": promised.joules,
        "notes": list(found.notes),
    }


def _print(found: "Profile") -> None:
    rows = []
    for name, value in _measured(found).items():
        if isinstance(value, dict):
            rows.append(
                (name, str(value["promised"]), "-" if value["measured"] is None else str(value["measured"]))
            )
        elif name in ("rom", "instructions"):
            rows.append((name, "-", "-" if value is None else str(value)))
    show.rows(console(), ("bytes and counts of one step", "promised", "measured"), rows)
    for note in found.notes:
        console().print(f"note: {note}")
