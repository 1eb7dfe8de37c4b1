"""Files of jobs: three formats, and what is wrong with them."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from statistics import median

import pytest

from tightrope.core import InfeasibleError, TightropeError
from tightrope_fleet.jobs import (
    JobShape,
    LifetimeTable,
    choose_shape,
    made_up_jobs,
    parse_jobs,
    read_jobs,
)
from tightrope_fleet.values.work import WorkItem

PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p0,12000,16384,1,1000,,LS,Succeeded,0,600,0\n"
    "p1,6000,12288,2,1000,,BE,Succeeded,300,900,300\n"
    "p2,6000,12288,1,460,,BE,Pending,400,800,\n"
    "p3,999000,12288,1,460,,BE,Running,500,900,\n"
)


def test_pods_are_read_with_gpus_and_features() -> None:
    trace = parse_jobs(PODS, "pods.csv")
    assert [item.size for item in trace.items] == [(12000, 16384, 1000), (6000, 12288, 2000)]
    assert trace.num_left_out == 2
    assert trace.features[0][0] == "LS"
    faster = parse_jobs(PODS, "pods.csv", compress=30)
    assert (faster.items[1].start, faster.items[1].end) == (10, 610)


def test_azure_rows_are_read_in_seconds() -> None:
    text = "vmId,vmTypeId,priority,starttime,endtime,core,memory,machineId\n"
    text += "7,42,0,0.5,1.5,0.25,0.5,16\n8,1,0,0.5,,0.2,0.2,1\n"
    trace = parse_jobs(text, "rows.csv")
    assert trace.items[0].size == (250_000, 500_000)
    assert (trace.items[0].start, trace.items[0].end) == (43_200, 129_600)
    assert trace.num_left_out == 0
    assert trace.open == (False, True)
    assert (trace.items[1].start, trace.items[1].end) == (43_200, 129_600)


def test_a_running_pod_has_no_known_end_and_a_pod_starts_when_it_is_scheduled() -> None:
    trace = parse_jobs(PODS.replace("LS,Succeeded,0,600,0", "LS,Running,0,600,50"), "pods.csv")
    assert trace.open == (True, False)
    assert (trace.items[0].start, trace.items[0].end) == (50, 900)
    assert (trace.num_left_out, trace.num_never_ran) == (2, 1)
    slower = parse_jobs(PODS.replace("LS,Succeeded,0,600,0", "LS,Running,0,600,0"), "p.csv", compress=0.01)
    assert slower.items[0].end > slower.items[1].start


def test_the_packing_trace_is_read_as_published(tmp_path: Path) -> None:
    file = tmp_path / "packing_trace_zone_a_v1.sqlite"
    with closing(sqlite3.connect(file)) as base:
        base.executescript(
            "CREATE TABLE vmType(id, vmTypeId, machineId, core REAL, memory REAL, hdd, ssd, nic);"
            "CREATE TABLE vm(vmId, tenantId, vmTypeId, priority, starttime REAL, endtime REAL);"
            "INSERT INTO vmType VALUES (0,7,0,.25,.5,0,0,0),(1,7,1,.5,1,0,0,0),(2,8,1,.125,.25,0,0,0),"
            "(3,9,2,1,1,0,0,0);"
            "INSERT INTO vm VALUES (1,7,7,1,0,.5),(2,7,8,1,-3.5,1),(3,7,8,1,.25,NULL),(4,7,9,0,0,1);"
        )
    trace = read_jobs(file)
    assert [(item.name, item.size) for item in trace.items] == [
        ("1", (500_000, 1_000_000)),
        ("2", (125_000, 250_000)),
        ("3", (125_000, 250_000)),
    ]
    assert trace.open == (False, False, True)
    assert trace.num_left_out == 1
    file.write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(TightropeError, match="no packing trace"):
        read_jobs(file)


def test_open_lives_count_for_every_longer_one() -> None:
    table = LifetimeTable([()])
    items = [WorkItem(str(at), (1,), 0, 10) for at in range(40)]
    table.learn(items, [()] * 40, open=[at % 2 == 0 for at in range(40)])
    table.learn([WorkItem("long", (1,), 0, 100)] * 20, [()] * 20)
    lives = table.ends(0, items[0]) - items[0].start
    assert (lives == 10).sum() == round(16 * 20 / 60)
    assert set(lives) == {10, 100}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,start,size\na,0,1", "jobs.csv, line 1: missing or repeated columns: end"),
        ("name,start,end\na,0,1", "line 1: no column says how large"),
        ("name,start,end,gb\na,0,1,-4", "line 2: gb is '-4'"),
        ("name,start,end,gb\na,0,x,4", "line 2: end is 'x'"),
        ("name,start,end,gb\na,5,5,4", "line 2: ends at 5"),
        ("name,start,end,gb\na,5,6,4\nb,5,6,4\na,7,9,4", "line 4: name 'a' is in line 2 too"),
        (
            "vmId,vmTypeId,starttime,endtime,core,memory,machineId\n1,7,0,1,1,1,0\n1,7,0,1,.5,.5,1",
            "line 3: vmId '1' is in line 2 too: give one row per job. Azure's vmType has one row per",
        ),
        ("name,start,end,gb\na,0,1,2.5", "line 2: gb is '2.5': give a whole number"),
        ('name,start,end,gb\na,0,1,2\n\nb,"0,1,4', "line 4: not CSV: a quote opens"),
        ("name,start,end,gb\n\na,0,1,2,7", "line 3: 5 values; the header names 4 columns, name,start,end,gb"),
        ("name,start,end,gb\na,0,1", "line 2: 3 values; the header names 4"),
        ("name,cpu_milli,gpu_milli\n", "missing or repeated columns: memory_mib"),
        ("name,start,end,end\n", "a name is there twice"),
    ],
)
def test_bad_files_are_named_by_line(text: str, said: str) -> None:
    with pytest.raises(TightropeError) as caught:
        parse_jobs(text, "jobs.csv")
    assert said in str(caught.value)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(TightropeError, match="give a CSV file"):
        read_jobs(tmp_path / "none.csv")
    file = tmp_path / "jobs.csv"
    file.write_text("name,start,end,gb\nb,2,4,1\na,0,10,3\n")
    assert [item.name for item in read_jobs(file).items] == ["a", "b"]
    file.write_bytes(b"name,start,end,gb\na,0,10,3\n\xff,2,4,1\n")
    with pytest.raises(TightropeError, match=r"jobs.csv, line 3: not UTF-8 text"):
        read_jobs(file)


def test_made_up_jobs_have_the_marginals() -> None:
    items = made_up_jobs(8000, seed=2).items
    lives = sorted(item.end - item.start for item in items)
    for share, real in ((0.1, 79), (0.5, 539), (0.9, 6374), (0.99, 73_484)):
        assert 0.6 < lives[int(share * 8000)] / real < 1.7
    long = sum(life for life in lives if life > 86_400)
    assert 0.5 < long / sum(lives) < 0.85  # 0.65 of the pods' time
    whole = sum(item.size[2] == 1000 for item in items) / 8000
    assert 0.43 < whole < 0.57  # 0.48
    by_size: dict[tuple[int, ...], list[int]] = {}
    for item in items:
        by_size.setdefault(item.size, []).append(item.end - item.start)
    assert median(by_size[8000, 30517, 0]) > 20 * median(by_size[3152, 5600, 1000])
    starts = [item.start for item in items]
    halves = sorted(Counter(start // 1800 for start in starts).values())
    assert starts == sorted(starts)
    assert halves[54] > 2 * halves[6]  # a steady rate gives 1.2


def test_a_jobs_shape_is_a_choice() -> None:
    shapes = [JobShape(40, 130.0, (0.125,)), JobShape(80, 100.0, (0.125,))]
    assert choose_shape(shapes, memory=100).bytes == 40
    assert choose_shape(shapes, memory=100, deadline=110).bytes == 80
    assert choose_shape(shapes, memory=1000).bytes == 80
    with pytest.raises(InfeasibleError, match="smallest takes 40"):
        choose_shape(shapes, memory=30)
    with pytest.raises(TightropeError, match="give ways"):
        choose_shape([], memory=30)
    with pytest.raises(TightropeError, match="seconds above 0"):
        choose_shape([JobShape(1, 0.0)], memory=30)
