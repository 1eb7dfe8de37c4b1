"""S5: streams of captured models that run, beside the forecast.

Three convolutional models, planned under byte limits by `tightrope.compile`, at rates that fill about two
thirds of a processor. Forecast: the mean CPU time of earlier calls, in turns. Observed: the mean over the
frames of a plan.
"""

from collections.abc import Callable

import torch
from rich.console import Console
from torch import nn

from benchmarks.micro.rows import Row
from tightrope_fleet.judge.streams import check_stream_run
from tightrope_fleet.streams import StreamOptions, expand, plan_streams
from tightrope_fleet.streams.real import prepare_model, profile_machine, run_real
from tightrope_fleet.values.streams import StreamModel, StreamScenario

_ROOM = 64 * 2**20


def net(width: int, depth: int) -> nn.Module:
    """Make a small convolutional model."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """The bars by name."""
    return {"S5": lambda: _s5(console)}


def _s5(console: Console) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # CPU time of this thread is that of the frame
    try:
        return _run(console)
    finally:
        torch.set_num_threads(threads)


def _run(console: Console) -> list[Row]:
    shapes = {"eyes": (16, 3, 96), "hands": (24, 4, 96), "depth": (32, 3, 128)}
    models = {
        name: prepare_model(net(width, depth), (torch.randn(1, 3, side, side),), room=_ROOM)
        for name, (width, depth, side) in shapes.items()
    }
    machine = profile_machine(models)
    costs = machine.processors[0].costs
    scenario = StreamScenario(
        "three models",
        tuple(
            StreamModel(name, min(200.0, 0.22e9 / costs[name].ns), after=("eyes",) if name == "hands" else ())
            for name in shapes
        ),
    )
    case = expand(scenario, machine, horizon=1_500_000_000)
    plan = plan_streams(case, options=StreamOptions(moves=20_000))
    run = run_real(case, plan, models)
    check_stream_run(scenario, machine, run, timed=True)
    worst = 0.0
    for m, name in enumerate(shapes):
        took = [frame.end - frame.start for frame in run.frames if frame.model == m and frame.state == "done"]
        observed = sum(took) / max(1, len(took))
        error = 100 * (observed / costs[name].ns - 1)
        worst = max(worst, abs(error))
        console.print(
            f"  {name}: forecast {costs[name].ns / 1e6:.3f} ms, observed {observed / 1e6:.3f} ms over "
            f"{len(took)} frames ({error:+.1f} %)"
        )
    over = sum(real.observed_peak() > real.limit for real in models.values())
    peaks = ", ".join(f"{name} {real.observed_peak() / 2**20:.1f} MiB" for name, real in models.items())
    ours = f"worst {worst:.1f} %; peaks {peaks} of {_ROOM / 2**20:.0f} MiB, {over} over"
    return [
        Row(
            "S5", "mean latency within 15 % in CPU time, limit never exceeded", ours, worst <= 15 and not over
        )
    ]
