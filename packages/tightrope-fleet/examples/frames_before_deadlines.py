"""Three models answer camera frames on two processors: plan who runs where, and which frames are dropped.

Costs are made up here; `tightrope_fleet.streams.real.profile_machine` measures them for models that you have.
"""

from tightrope_fleet.judge.streams import check_stream_plan
from tightrope_fleet.streams import POLICIES, StreamOptions, expand, plan_streams, run_plan, score, simulate
from tightrope_fleet.values.streams import (
    ModelCost,
    StreamMachine,
    StreamModel,
    StreamProcessor,
    StreamScenario,
)

MS = 1_000_000  # nanoseconds
MIB = 2**20

scenario = StreamScenario(
    "headset",
    (
        StreamModel("eyes", 60, weights=2 * MIB, activations=MIB),
        StreamModel(
            "gaze", 60, after=("eyes",), weights=4 * MIB, activations=MIB
        ),  # needs the same frame's eyes
        StreamModel("depth", 30, weights=20 * MIB, activations=4 * MIB),
    ),
)
large = {"eyes": ModelCost(4 * MS, 40), "gaze": ModelCost(6 * MS, 80), "depth": ModelCost(24 * MS, 300)}
small = {"eyes": ModelCost(9 * MS, 10), "gaze": ModelCost(14 * MS, 30), "depth": ModelCost(70 * MS, 120)}
# Both processors share 32 MiB: weights that do not fit beside what runs come in again at 20 GB/s.
machine = StreamMachine(
    "board",
    (StreamProcessor("large", large), StreamProcessor("small", small)),
    arena=32 * MIB,
    page_rate=20e9,
)

case = expand(scenario, machine)  # 700 ms of frames
for name, policy in POLICIES.items():
    print(f"{name:13} {score(scenario, simulate(case, policy(case))).total:6.2f}")

plan = plan_streams(case, options=StreamOptions(moves=20_000))
run = run_plan(case, plan)
check_stream_plan(scenario, machine, plan, run)  # shares no code with the planner
print(f"planned       {plan.score:6.2f}, and no plan scores more than {plan.upper_bound:.2f}")
for one in score(scenario, run).models:
    print(f"  {one.name}: {one.num_done} done, {one.num_dropped} dropped")
print(f"the arena held at most {run.peak / MIB:.0f} MiB: within its limit: {run.peak <= machine.arena}")
