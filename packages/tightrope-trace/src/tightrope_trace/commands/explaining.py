"""What a plan's simulation answers, and what fewer bytes would cost."""

from typing import TYPE_CHECKING

from tightrope.cli.sound import Sound
from tightrope.core import Bytes, InfeasibleError, Plan, parse_bytes

if TYPE_CHECKING:
    from tightrope_trace import Answers


def answers_of(sound: Sound, save: str | None, top: int) -> "Answers":
    """Answer what a plan's simulation can."""
    from tightrope.record import forecast
    from tightrope_trace import explain

    asked: Bytes = parse_bytes(save, name="save") if save is not None else 0
    others = smaller_plan(sound, asked)
    simulated = forecast(sound.graph, sound.plan, machine=sound.machine, others=others)
    return explain(simulated, save=asked, top=top)


def smaller_plan(sound: Sound, save: Bytes) -> tuple[Plan, ...]:
    """Plan for so many bytes less than a plan takes, and bound the time of all such plans; none for 0."""
    from tightrope.cli.show import searching
    from tightrope.plan import solve

    budget = sound.plan.forecast.total - save
    if not save or budget <= 0:
        return ()
    try:
        with searching(budget) as tell:
            plan = solve(
                sound.graph, budget=budget, machine=sound.machine, placed=sound.plan.placed, bound=True,
                progress=tell,
            )  # fmt: skip
    except InfeasibleError:
        return ()
    return (plan,)
