"""The command ``trees``: boosted trees over parties that keep their data."""

import csv
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import Bytes, TightropeError, parse_bytes
from tightrope.core.writing import write_whole
from tightrope_fleet.values.work import broken, promise_table

_EXAMPLES = """\b
Examples:
  tightrope trees bank.csv shop.csv --protection masks --trees 50 -o forest.json
  tightrope trees bank.csv shop.csv --wire-limit 10MB --test holdout.csv --json
  tightrope trees labels.csv more.csv --split columns --protection paillier --trees 5 --bins 32
  tightrope trees one.csv two.csv --epsilon 4 --range 0,1 --depth 4
  tightrope trees mine.csv --join 10.0.0.1:5000 --party 2/3 --protection masks -o forest.json
  tightrope trees one.csv two.csv --loss softmax --min-rows 20 --trees 500 --stop 20 -o forest.json"""
_PREDICT = """\b
Examples:
  tightrope predict forest.json customers.csv -o answers.csv
  tightrope predict forest.json customers.csv --json"""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "trees", short_help="Train boosted trees over parties that keep their data.", epilog=_EXAMPLES
    )(trees)
    app.command("predict", short_help="Answer for the rows of a table by a forest.", epilog=_PREDICT)(predict)


def trees(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="TABLE...", help="One CSV (with a header) or LIBSVM file per party."),
    ],
    split: Annotated[str, typer.Option(help="Parties hold different rows, or columns.")] = "rows",
    protection: Annotated[str, typer.Option(help="none, masks (rows) or paillier (columns).")] = "none",
    label: Annotated[str, typer.Option(help="Column of the labels.")] = "y",
    weight: Annotated[str, typer.Option(help="Column of weights of rows.")] = "",
    num_trees: Annotated[int, typer.Option("--trees", help="Rounds of boosting.")] = 50,
    depth: Annotated[int, typer.Option(help="Splits on the longest path.")] = 6,
    leaves: Annotated[int, typer.Option(help="Grow the best leaf first, up to this many; 0: by level.")] = 0,
    rate: Annotated[float, typer.Option(help="What every leaf is multiplied by.")] = 0.1,
    bins: Annotated[int, typer.Option(help="Bins per feature, at most.")] = 255,
    min_rows: Annotated[int, typer.Option(help="Rows of a leaf, at least.")] = 1,
    loss: Annotated[
        str, typer.Option(help="logistic (0 and 1), squared, or softmax (0, 1, 2 ...).")
    ] = "logistic",
    stop: Annotated[int, typer.Option(help="Stop after so many rounds without a gain on held-out rows.")] = 0,
    hold_out: Annotated[float, typer.Option(help="Share of the rows held out, with --stop.")] = 0.2,
    wire_limit: Annotated[
        str | None, typer.Option(help="Bytes per party while trees grow, such as 10MB.")
    ] = None,
    key_bits: Annotated[int, typer.Option(help="Of a Paillier key, 2048 or more.")] = 2048,
    epsilon: Annotated[float | None, typer.Option(help="Differential privacy of the whole forest.")] = None,
    ranges: Annotated[
        str, typer.Option("--range", help="Public LEAST,LARGEST of all features, with --epsilon.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of the noise of --epsilon.")] = 0,
    join: Annotated[
        str | None, typer.Option(help="HOST:PORT of party 1: TABLE is of one party, others run elsewhere.")
    ] = None,
    party: Annotated[str, typer.Option(help="With --join: which party this is of how many, 1/3.")] = "",
    test: Annotated[Path | None, typer.Option(help="A table that the forest is tried on.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the forest here.")] = None,
    json: Json = False,
) -> None:
    """Train boosted trees over parties that keep their data.

    The forest has the same bits for any number of parties, and with or without masks or encryption.
    Parties are files here: the work and the bytes are real, the network is not. With --join each
    party is a process of its own. Exit code 0: within all limits; 3: not; 2: error.
    """
    from tightrope_fleet.trees.job import TreeJob, run_tree_job
    from tightrope_fleet.trees.params import Boosting
    from tightrope_fleet.trees.private import Privacy

    check_outputs([output], [*files, test])
    if split not in ("rows", "columns") or protection not in ("none", "masks", "paillier"):
        raise TightropeError(
            f"--split {split!r} --protection {protection!r}: give rows or columns, and none, masks or "
            "paillier."
        )
    limit = None if wire_limit is None else parse_bytes(wire_limit, name="--wire-limit")
    if ranges and epsilon is None:
        raise TightropeError(f"--range {ranges!r:.60} is of --epsilon: give both, or leave it out.")
    private = None if epsilon is None else Privacy(epsilon, _ranges(ranges), seed=seed)
    params = Boosting(
        trees=num_trees, depth=depth, leaves=leaves, rate=rate, bins=bins, min_rows=min_rows, stop=stop,
        hold_out=hold_out, loss=loss, classes=2 * (loss == "softmax"),  # type: ignore[arg-type]
        hessian="exact" if private is None else "one", child_weight=1.0 if private is None else 0.0,
    )  # fmt: skip
    parties, features = _parties(files, label, weight, split)
    if join is not None or party:
        if split != "rows" or private is not None or limit is not None or protection == "paillier":
            raise TightropeError(
                "--join takes rows, with masks or none: leave out --split, --epsilon and --wire-limit."
            )
        joined = _join(parties, features, params, (join, party), masks=protection == "masks")
        return _joined(joined, output, _quality(joined[0], test, label, weight, bare=False), json)
    if loss == "softmax":
        params = replace(params, classes=max(2, 1 + int(max(party.largest_label for party in parties))))
    job = TreeJob(params, split, protection, key_bits, limit, None, private)  # type: ignore[arg-type]
    result = run_tree_job(parties, job, features=features, progress=_progress(num_trees))
    quality = _quality(result.forest, test, label, weight, bare=split == "columns")
    _answer(result, quality, output, seed, json)


def _answer(result: Any, quality: dict[str, float], output: Path | None, seed: int, json: bool) -> None:
    """Write and print what a training gave; leave with 3 where a limit does not hold."""
    import msgspec

    if output is not None:
        write_whole(output, result.forest.dump())
    if json:
        emit_json(
            {
                "hash": result.forest.hash, "bins": result.params.bins, "seed": seed, "quality": quality,
                "promises": msgspec.to_builtins(result.promises),
                "bytes": {f"{party} {phase}": size for (party, phase), size in
                sorted(result.wire.up.items())},
                "written": None if output is None else str(output),
            }
        )  # fmt: skip
    else:
        _say(result, quality, output)
    if broken(result.promises):
        raise typer.Exit(DOES_NOT_FIT)


def _join(
    parties: list[Any], features: tuple[str, ...], params: Any, where: tuple[str | None, str], *, masks: bool
) -> tuple[Any, Bytes]:
    """Train with parties in other processes; return the forest, and the bytes handed to them."""
    from tightrope_fleet.trees.sockets import PartyLink, train_with_others

    address, text = where
    place, mark, count = text.partition("/")
    if address is None or not mark or not (place.isascii() and count.isascii()):
        raise TightropeError("--join HOST:PORT and --party 1/3 go together: give both.")
    if not (place.isdigit() and count.isdigit() and len(text) < 12) or len(parties) != 1:
        raise TightropeError(f"--party {text[:40]!r}: write 1/3 for the first of three, and give one table.")
    link = PartyLink(address, int(place) - 1, int(count))
    ticks = _progress(params.trees)
    forest = train_with_others(parties[0], params, link, features=features, masks=masks, progress=ticks)
    return forest, link.num_bytes


def _joined(found: tuple[Any, Bytes], output: Path | None, quality: dict[str, float], json: bool) -> None:
    """Write and print what a training with others gave."""
    forest, num_bytes = found
    if output is not None:
        write_whole(output, forest.dump())
    if json:
        emit_json({"hash": forest.hash, "quality": quality, "bytes": num_bytes})
        return
    console().print(
        f"forest {forest.hash[:16]}: {len(forest.trees)} trees; {num_bytes} bytes handed to others"
    )
    for name, value in quality.items():
        console().print(f"{name}: {value:.4f}")


def _say(result: Any, quality: dict[str, float], output: Path | None) -> None:
    from tightrope.cli.show import rows

    console().print(
        f"forest {result.forest.hash[:16]}: {len(result.forest.trees)} trees, {result.params.bins} "
        "bins at most"
    )
    rows(console(), ("limit", "asked", "forecast", "observed", "state"), promise_table(result.promises))
    for name, value in quality.items():
        console().print(f"{name}: {value:.4f}")
    if output is not None:
        console().print(f"written: {output}", markup=False, soft_wrap=True)


def _parties(files: list[Path], label: str, weight: str, split: str) -> tuple[list[Any], tuple[str, ...]]:
    from tightrope_fleet.trees.parties import PartyTable
    from tightrope_fleet.trees.table import read_table

    weighted = len(files) if split == "rows" else 1  # over columns the first one has labels and weights
    read = [
        read_table(file, label=label, weight=weight if place < weighted else "")
        for place, file in enumerate(files)
    ]
    if split == "rows":
        features = read[0].features
        tables = [
            one.matched(features, file, whose=repr(str(files[0])))
            for file, one in zip(files, read, strict=True)
        ]
    else:
        tables = [one.table for one in read]
        for file, one in zip(files, read, strict=True):
            if one.ids != read[0].ids:
                raise TightropeError(
                    f"{str(file)!r}: its column 'id' is not that of {str(files[0])!r}; the same rows "
                    "in the same order are needed."
                )
        features = tuple(
            f"{file.stem}.{name}" for file, one in zip(files, read, strict=True) for name in one.features
        )
    labelled = read if split == "rows" else read[:1]
    for file, one in zip(files, labelled, strict=False):
        if one.labels is None:
            raise TightropeError(f"{str(file)!r} has no column {label!r} of labels; name it by --label.")
    return [
        PartyTable(
            file.name if len({f.name for f in files}) == len(files) else str(file),
            table,
            one.labels,
            one.weights,
        )
        for file, one, table in zip(files, read, tables, strict=True)
    ], features


def _quality(forest: Any, test: Path | None, label: str, weight: str, *, bare: bool) -> dict[str, float]:
    if test is None:
        return {}
    from tightrope_fleet.trees.quality import auc, root_mean_square

    found = _tested(forest, test, label, weight)
    if found.labels is None:
        raise TightropeError(f"{str(test)!r} has no column {label!r} of labels; name it by --label.")
    margin = forest.margin(found.matched(forest.features, test, whose="the forest", bare=bare))
    if forest.loss == "logistic":
        return {"test AUC": auc(found.labels, margin)}
    if forest.loss == "softmax":
        return {"test accuracy": float((margin.argmax(axis=1) == found.labels).mean())}
    return {"test RMSE": root_mean_square(found.labels, margin)}


def _tested(forest: Any, table: Path, label: str, weight: str) -> Any:
    """Read a table that a forest is tried on; a column of weights that it has too is no feature."""
    from tightrope.core.files import read_file
    from tightrope_fleet.trees.table import read_table

    if not str(table).endswith(".csv"):
        return read_table(table, label=label, width=len(forest.features))
    header = read_file(table, limit=2**29).partition(b"\n")[0].decode(errors="replace").split(",")
    return read_table(table, label=label, weight=weight if weight in map(str.strip, header) else "")


def predict(
    forest: Annotated[Path, typer.Argument(metavar="FOREST", help="That tightrope trees wrote.")],
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A CSV (with a header) or LIBSVM file.")],
    label: Annotated[str, typer.Option(help="Column of labels, which is left out where it is there.")] = "y",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write CSV here; default: standard output.")
    ] = None,
    json: Json = False,
) -> None:
    """Answer for the rows of a table: the chance of label 1, a number, or the chance of every class.

    Columns are matched by their names. A column id is handed through.
    """
    check_outputs([output], [forest, table])
    from tightrope_fleet.trees.forest import load_forest

    known = load_forest(str(forest))
    found = _tested(known, table, label, "")
    answers = known.predict(found.matched(known.features, table, whose="the forest", bare=True))
    rows = answers.reshape(len(answers), -1).tolist()
    heads = [f"class_{k}" for k in range(known.outputs)] if known.outputs > 1 else ["answer"]
    if json:
        emit_json({"columns": heads, "ids": list(found.ids), "rows": rows})
        return
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow([*(["id"] if found.ids else []), *heads])
    for place, row in enumerate(rows):
        writer.writerow([*([found.ids[place]] if found.ids else []), *row])
    if output is None:
        sys.stdout.write(lines.getvalue())
    else:
        write_whole(output, lines.getvalue())
        console().print(f"written: {output}, {len(rows)} rows", markup=False, soft_wrap=True)


def _ranges(text: str) -> tuple[tuple[float, float], ...]:
    try:
        low, high = (float(word) for word in text.split(","))
    except ValueError as error:
        raise TightropeError(
            f"--range {text!r}: with --epsilon give the public range of all features, such as --range 0,1."
        ) from error
    return ((low, high),)


def _progress(total: int) -> Any:
    if not sys.stderr.isatty():
        return None
    import time

    begun = time.monotonic()

    def say(done: int) -> None:
        if time.monotonic() - begun > 2:
            sys.stderr.write(f"\r{done} of {total} trees" + "\n" * (done == total))

    return say
