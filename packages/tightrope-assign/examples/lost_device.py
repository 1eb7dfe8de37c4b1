"""Place a graph of tasks, lose a device, and place what is left: `python lost_device.py`."""

from tightrope_assign.judge.tasks import check_task_plan
from tightrope_assign.tasks import TaskOptions, place_tasks
from tightrope_assign.tasks.made_up import made_up_cluster, made_up_graph


def main() -> None:
    graph = made_up_graph(40, seed=1, bytes=1000)
    cluster = made_up_cluster(12, seed=1, bytes=9000, support=0.4)
    search = TaskOptions(method="search", moves=2000)
    plan = place_tasks(graph, cluster, options=search)
    check_task_plan(graph, cluster, plan)
    busiest = max(cluster.names, key=lambda name: sum(one.device == name for one in plan.placed))
    left = cluster.without([busiest])
    again = place_tasks(graph, left, options=search, replaces=plan)
    check_task_plan(graph, left, again, replaces=plan)
    print(
        f"{plan.makespan / 1e6:.2f} ms, at least {plan.lower_bound / 1e6:.2f} ms; without {busiest}: ", end=""
    )
    print(f"{again.makespan / 1e6:.2f} ms, and {again.moved_bytes} bytes move")


if __name__ == "__main__":
    main()
