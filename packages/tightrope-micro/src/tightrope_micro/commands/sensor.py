"""The commands ``tightrope micro ingest``, ``dsp`` and ``tune``, and the profile of their folders."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tightrope.cli import show
from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import TightropeError, parse_bytes
from tightrope.core.files import read_file

if TYPE_CHECKING:
    from tightrope_micro.sensor.blocks import Block
    from tightrope_micro.sensor.library import SensorManifest

_INGEST = """\b
Examples:
  tightrope micro ingest recordings/ --key-file hmac.key -o gestures.npz
  tightrope micro ingest circles.01.cbor --key-file hmac.key -o circles.01.json
  tightrope micro ingest recordings/ --no-verify -o gestures.npz --json"""
_DSP = """\b
Examples:
  tightrope micro dsp gestures.npz --block spectral --fft 128 --bands 8
  tightrope micro dsp gestures.npz --block mfe --fft 64 --bands 10 -o FEATURES/ --json"""
_TUNE = """\b
Examples:
  tightrope micro tune gestures.npz --ram 6400 --rom 42500 --instructions 1360000 -o OUT/
  tightrope micro tune gestures.npz --ram 2KiB --ms 1 --mhz 64 -o OUT/ --json"""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Data = Annotated[Path, typer.Argument(metavar="DATA.npz", help="That tightrope micro ingest wrote.")]


def register(micro: typer.Typer) -> None:
    """Add the commands to those of ``tightrope micro``."""
    micro.command("ingest", short_help="Check signed recordings and put them into a file.", epilog=_INGEST)(
        ingest_command
    )
    micro.command("dsp", short_help="Compute features of windows, and write their C.", epilog=_DSP)(
        dsp_command
    )
    micro.command("tune", short_help="Search features and net under limits, and write C.", epilog=_TUNE)(
        tune_command
    )


def ingest_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Recordings LABEL.NAME.json or .cbor, or folders.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="DATA.npz; or a .json or .cbor for one recording.")
    ],
    key_file: Annotated[
        Path | None, typer.Option(help="File with the HMAC key that every recording is signed with.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Check signatures; without, only the format.")] = True,
    json: Json = False,
) -> None:
    """Read recordings in the signed acquisition format, check every one, and write one data set.

    Nothing is written where one is refused. To a .json or .cbor, one recording is written in the other
    encoding and signed again.
    """
    from tightrope.core.writing import write_whole
    from tightrope_micro.sensor import (
        encoding_of,
        ingest,
        read_acquisition_file,
        write_acquisition,
        write_dataset,
    )

    check_outputs([output], [*paths, key_file])
    if verify and key_file is None:
        raise TightropeError(
            "signatures need a key: add --key-file FILE, or --no-verify to check only the format."
        )
    key = None if key_file is None else _key(key_file)
    suffix = output.suffix
    if suffix not in (".npz", ".json", ".cbor"):
        raise TightropeError(f"{str(output)!r}: a data set ends in .npz, a recording in .json or .cbor.")
    if suffix != ".npz":
        if len(paths) != 1:
            raise TightropeError(f"{len(paths)} recordings do not go into one {suffix} file: give one.")
        recording = read_acquisition_file(paths[0], key=key if verify else None)
        data = write_acquisition(recording, "json" if suffix == ".json" else "cbor", key=key)
        write_whole(output, data)
        said: dict[str, Any] = {"output": str(output), "encoding": encoding_of(data), "bytes": len(data)}
    else:
        with _working("reading recordings"):
            found = ingest(paths, key=key if verify else None)
        write_dataset(output, found)
        said = {
            "output": str(output),
            "recordings": len(found.recordings),
            "labels": {name: sum(one.label == name for one in found.recordings) for name in found.labels},
            "rows": sum(len(one.values) for one in found.recordings),
            "sensors": [f"{one.name} ({one.units})" for one in found.sensors],
            "interval_ms": found.interval_ms,
        }
    _say({**said, "verified": verify}, json)


def dsp_command(
    data: Data,
    block: Annotated[
        Literal["spectral", "flatten", "mfe"], typer.Option(help="What to compute.")
    ] = "spectral",
    window: Annotated[float, typer.Option(help="Milliseconds of a window.")] = 2000.0,
    fft: Annotated[int, typer.Option(help="Samples of a frame.")] = 128,
    bands: Annotated[int, typer.Option(help="Bands of a spectrum, or triangles of mfe.")] = 8,
    filter: Annotated[Literal["none", "low", "high"], typer.Option(help="Of spectral.")] = "none",
    cutoff: Annotated[float, typer.Option(help="Hz, of the filter.")] = 3.0,
    order: Annotated[int, typer.Option(help="Of the filter: 2, 4, 6 or 8.")] = 6,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder to write.")] = None,
    json: Json = False,
) -> None:
    """Compute the features of every window, say what they take on a device, and write them and their C.

    The folder has features.npz and a C library, and is written whole or not at all.
    """
    import io

    import numpy as np

    from tightrope_micro.compile import check_new
    from tightrope_micro.sensor import Library, Pipeline, features, library, read_dataset, windows

    if output is not None:
        check_new(output)
    found = read_dataset(data)
    rows = _rows(window, found.interval_ms)
    chosen = _block(
        block, {"fft": fft, "bands": bands, "filter": filter, "cutoff_hz": cutoff, "order": order}
    )
    pipeline = Pipeline(rows, len(found.sensors), found.interval_ms, chosen)
    pipeline.check()
    cut, labels = windows(found.recordings, rows, max(1, rows // 2))
    with _working("computing features"):
        values = features(chosen, cut, pipeline.rate_hz)
    made = library(pipeline, (), cut[:: max(1, len(cut) // 4)][:4])
    if output is not None:
        stream = io.BytesIO()
        np.savez(stream, features=values, labels=np.array(labels))
        Library(made.manifest, {**made.texts, "features.npz": stream.getvalue()}).write(output)
    _say(
        {"windows": len(cut), "rows": rows, "features": pipeline.num_features, **_said(made.manifest),
         "output": None if output is None else str(output)},
        json,
    )  # fmt: skip


def tune_command(
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    ram: Annotated[
        str | None, typer.Option(help="Static RAM, such as 2KiB; not the window, not the stack.")
    ] = None,
    rom: Annotated[str | None, typer.Option(help="Code and constants.")] = None,
    instructions: Annotated[int | None, typer.Option(min=1, help="Of one window.")] = None,
    ms: Annotated[float | None, typer.Option(help="Milliseconds of one window at --mhz.")] = None,
    mhz: Annotated[float, typer.Option(help="One instruction per cycle is assumed: modelled.")] = 80.0,
    seed: Annotated[int, typer.Option(min=0, help="Of training.")] = 0,
    integer: Annotated[bool, typer.Option(help="Nets of 8-bit integers.")] = False,
    json: Json = False,
) -> None:
    """Search windows, features and nets under limits, train, and write the best as a C library.

    What is above a limit by its forecast is never tried; a quarter of the rest is tried at most.
    Exit code 3: nothing is within the limits.
    """
    from tightrope.run.base.status import StatusLine
    from tightrope_micro.compile import check_new
    from tightrope_micro.sensor import Choices, SensorLimits, library, read_dataset, tune

    check_new(output)
    if not (0 < (1 if ms is None else ms) < 1e9 and 0 < mhz < 1e6):
        raise TightropeError("--ms and --mhz are numbers above 0.")
    counts = [
        count for count in (instructions, None if ms is None else int(ms * mhz * 1000)) if count is not None
    ]
    limits = SensorLimits(
        None if ram is None else parse_bytes(ram),
        None if rom is None else parse_bytes(rom),
        min(counts, default=None),
    )
    found = read_dataset(data)
    with StatusLine(lines=True).task("searching features and nets", 1) as tick:
        choices = Choices(numbers="int8" if integer else "float32")
        tuned = tune(found, limits, choices=choices, seed=seed, tick=tick)
    best = tuned.best.trained
    made = library(best.pipeline, best.layers, best.samples, accuracy=best.accuracy)
    made.write(output)
    _say(
        {"pipeline": str(best.pipeline), "accuracy": round(best.accuracy, 4), **_said(made.manifest),
         "trials": len(tuned.trials), "within_limits": tuned.num_allowed, "above_a_limit": tuned.num_refused,
         "output": str(output)},
        json,
    )  # fmt: skip


def profile_sensor(folder: Path, manifest: "SensorManifest", json: bool) -> None:
    """Measure a pipeline beside its forecast.

    Exit code 3: RAM is not as forecast, ROM or instructions are further off than is promised, or
    nothing could be built.
    """
    from tightrope_micro.emulate import missing_tools
    from tightrope_micro.host import c_compiler
    from tightrope_micro.sensor import features, sensor_on_board, sensor_on_host
    from tightrope_micro.sensor.measure import samples_of

    notes, said = [], manifest.forecast
    rows: dict[str, Any] = {}
    holds = False
    if c_compiler() is None:
        notes.append("not run on this computer: no C compiler (cc, gcc or clang)")
    else:
        here = sensor_on_host(folder)
        rows["arena"] = {"promised": said.ram, "measured": here.arena}
        wanted = features(manifest.pipeline.block, samples_of(folder, manifest), manifest.pipeline.rate_hz)
        rows["largest_difference_of_a_feature"] = float(abs(here.features - wanted).max())
        holds = here.arena == said.ram
    if missing := missing_tools():
        notes.append(f"not run on the emulated board: {missing}")
    else:
        board = sensor_on_board(folder)
        for name in ("ram", "rom", "instructions"):
            rows[name] = {"promised": getattr(said, name), "measured": getattr(board, name)}
        rows |= {"stack": board.stack, "ram_with_window_bench_and_stack": board.everything}
        rows["rom_with_bench"] = board.rom_everything
        holds = board.ram == said.ram and all(
            abs(getattr(said, name) - getattr(board, name)) <= share * getattr(board, name)
            for name, share in (("rom", 0.02), ("instructions", 0.1))
        )
    _say({"holds": holds, **rows, "notes": notes}, json)
    if not holds:
        raise typer.Exit(DOES_NOT_FIT)


def _said(manifest: "SensorManifest") -> dict[str, Any]:
    said = manifest.forecast
    return {"ram_forecast": said.ram, "rom_forecast": said.rom, "instructions_forecast": said.instructions}


def _say(values: dict[str, Any], json: bool) -> None:
    if json:
        emit_json(values)
    else:
        rows = [
            (name, ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value))
            for name, value in values.items()
        ]
        show.rows(console(), ("what", "value"), rows)


def _working(text: str) -> Any:
    from tightrope.run.base.status import StatusLine

    return StatusLine(lines=True).task(text, 1)


def _key(path: Path) -> str:
    try:
        text = read_file(path, limit=2**16).decode().strip()
    except UnicodeDecodeError as error:
        raise TightropeError(
            f"{str(path)!r} cannot be read: {error}. Give a text file with the key."
        ) from error
    if not text:
        raise TightropeError(f"{str(path)!r} is empty: it has to hold the key of the project.")
    return text


def _rows(ms: float, interval_ms: float) -> int:
    if not 0 < ms < 1e7 or not 2 <= round(ms / interval_ms) <= 65_536:
        raise TightropeError(f"--window {ms:g}: give 2 to 65536 intervals of {interval_ms:g} ms.")
    return round(ms / interval_ms)


def _block(kind: str, given: dict[str, Any]) -> "Block":
    import msgspec

    from tightrope_micro.sensor import Flatten, MelEnergies, Spectral

    if kind == "flatten":
        return Flatten()
    if kind == "mfe":
        return MelEnergies(fft=given["fft"], filters=given["bands"])
    try:
        return msgspec.convert({**given, "kind": "spectral"}, Spectral)
    except msgspec.ValidationError as error:
        raise TightropeError(f"--block spectral: {error}. See tightrope micro dsp --help.") from error
