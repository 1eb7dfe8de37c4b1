"""What the runs of families amount to: a line per family, and the bars."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

Row = dict[str, Any]


def one_graph(row: Row) -> bool:
    """Whether the first call is one graph: to the library, or to Dynamo alone."""
    whole, aot = row["runs"].get("100%", {}), row["aot"]
    return (whole.get("level"), whole.get("graphs")) == ("L1", 1) or (
        aot.get("graphs") == 1 and not aot["breaks"]
    )


def group(row: Row) -> str:
    """Which half of the list a family is of, and whether it is one graph."""
    return f"{'kept' if row['kept'] else 'tuned'}, {'one graph' if one_graph(row) else 'not one'}"


def line(row: Row) -> str:
    """One family."""
    if "ms" not in row.get("eager", {}):
        return f"{row['name']:20} eager fails: {row['eager'].get('said', '')[:200]}"
    eager, parts = row["eager"], []
    for way, run in row["runs"].items():
        run = run.get("later", run)
        if "bits" not in run:
            said = " ".join(str(run.get("said", "")).split())[:200]
            kind = "FAILED" if "failed" in run else "refused"
            error = f"{kind} {run.get('failed', run.get('refused'))} in step {run['step']}: {said}"
            parts.append(f"{way}: {error}, named {run.get('named') or 'nothing'}")
            continue
        flags = [run["bits"], *(["OVER BUDGET"] if not run["kept"] else [])]
        flags += ["not as forecast"] if run["level"] == "L1" and not run["as_forecast"] else []
        ratio = f" {run['ratio']:.2f}x" if "ratio" in run else ""
        ratio += f" first {run['first']:.1f} s, {run['plans']} plans"
        parts.append(f"{way}: {run['level']} {run['graphs']} graphs, {', '.join(flags)}{ratio}")
    first = f"aot {row['aot']['cpu'][0]:.1f} s" if "cpu" in row["aot"] else f"aot {row['aot'].get('failed')}"
    head = f"{row['name']:20} {group(row):17} {eager['ms']:6.1f} ms {eager['peak'] / 2**20:6.1f} MiB "
    return f"{head}{100 * eager['share']:3.0f}% {first}\n    " + "\n    ".join(parts)


def _all_of(rows: Sequence[Row], *ways: str) -> list[Row]:
    return [row["runs"][way] for row in rows for way in ways or row["runs"] if way in row["runs"]]


def _trains(run: Row) -> bool:
    return "bits" in run and "later" not in run


def _in_family(run: Row) -> bool:
    return "failed" not in run.get("later", run)


def _share(what: str, runs: Iterable[Any], test: Callable[[Any], bool], least: float) -> tuple[str, bool]:
    found = [bool(test(run)) for run in runs]
    share = sum(found) / len(found) if found else 1.0
    figures = f"{sum(found):4} of {len(found):3} (at least {100 * least:.0f}%)"
    return f"  {what:58}{figures}  {'ok' if share >= least else 'MISSED'}", share >= least


def _times(what: str, values: Sequence[float], middle: float, worst: float) -> tuple[str, bool]:
    if not values:
        return f"  {what:58} no runs", True
    met = median(values) <= middle and max(values) <= worst
    figures = f"median {median(values):.2f} (at most {middle}), worst {max(values):.2f} (at most {worst})"
    return f"  {what:58} {figures}, of {len(values)}  {'ok' if met else 'MISSED'}", met


def _bars(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    single, several = [[row for row in rows if one_graph(row) is kind] for kind in (True, False)]
    full = [row for row in rows if row["eager"]["share"] > 0.5]
    broken = [row for row in full if not one_graph(row)]
    long = [row for row in single if row["eager"]["ms"] > 10]
    short = [row for row in single if 1 <= row["eager"]["ms"] <= 10]
    trained = [run for run in _all_of(rows) if _trains(run)]
    planned = [run for run in trained if run["level"] in ("L1", "L2")]
    named = [(row, row["runs"]["first number"]) for row in rows if "first number" in row["runs"]]

    def ratios(of: Sequence[Row], way: str) -> list[float]:
        return [run["ratio"] for run in _all_of(of, way) if "ratio" in run]

    def firsts(way: str) -> list[float]:
        pairs = [(row["runs"].get(way, {}), row["aot"]) for row in rows]
        return [run["first"] / aot["cpu"][0] for run, aot in pairs if _trains(run) and "cpu" in aot]

    def small(pair: tuple[Row, Row]) -> bool:
        whole, typed = pair[0]["runs"].get("100%", {}).get("unplanned", 0), pair[1]["typed"]
        most = 100 if typed.endswith("%") else max(whole, pair[0]["eager"]["peak"])
        return int(typed.rstrip("%")) <= int(most)

    seconds = [run["first"] for run in _all_of(rows, "100%", "75%") if _trains(run)]
    return [
        _share("G1 train at 100%", _all_of(rows, "100%"), _trains, 0.95),
        _share("G1 train at 75%, activations over half", _all_of(full, "75%"), _trains, 0.85),
        _share("G1 the same, not one graph", _all_of(broken, "75%"), _trains, 0.75),
        _share("G1 raise nothing but TightropeError", _all_of(rows), _in_family, 1.0),
        _times("G2 at 100%, one graph over 10 ms", ratios(long, "100%"), 1.05, 3),
        _times("G2 at 100%, one graph of 1 to 10 ms", ratios(short, "100%"), 1.15, 3),
        _times("G2 at 100%, not one graph", ratios(several, "100%"), 1.5, 3),
        _times("G2 at 75%, one graph", ratios(single, "75%"), 1.35, 3),
        _times("G2 at 75%, not one graph", ratios(several, "75%"), 2.0, 3),
        _share("G3 the first number is at most the unplanned step", named, small, 1.0),
        _share("G3 the first number trains", _all_of(rows, "first number"), _trains, 0.9),
        _share("G3 the second number trains", _all_of(rows, "second number"), _trains, 1.0),
        _share("G4 bytes within the budget", trained, lambda run: run["kept"], 1.0),
        _share("G4 bits equal, or the op named", trained, lambda run: run["bits"] != "DIFFER", 1.0),
        _share("G4 as forecast, where planned", planned, lambda run: run["as_forecast"], 1.0),
        _times("G5 first step over aot_eager's at 100%", firsts("100%"), 2, float("inf")),
        _times("G5 first step over aot_eager's at 75%", firsts("75%"), 4, float("inf")),
        _times("G5 CPU seconds of a first step", seconds, 30, 30),
    ]  # fmt: skip


def summary(rows: Sequence[Row]) -> tuple[list[str], bool]:
    """The bars for all families and for each group of them; whether all are met."""
    lines, met = list[str](), True
    for half in ("all", "tuned, one graph", "tuned, not one", "kept, one graph", "kept, not one"):
        chosen = [row for row in rows if half in ("all", group(row))]
        bars = _bars(chosen)
        lines += [f"{half}: {len(chosen)} families", *(said for said, _ in bars)]
        met = met and (half != "all" or all(good for _, good in bars))
    return lines, met
