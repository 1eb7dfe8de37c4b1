"""Plans of graph messages with one thing wrong."""

import random

from msgspec.structs import replace as changed

from tightrope_ranks.values.graphs import GraphPlan, Route


def damaged(plan_: GraphPlan, rng: random.Random) -> GraphPlan:
    """Break one thing: rows, routes, messages, widths, sums, halos, the limit, or an owner."""
    routes, messages = list(plan_.routes), list(plan_.messages)
    owner, holds = list(plan_.owner), list(plan_.holds)
    at, message = rng.randrange(len(routes)), rng.randrange(len(messages))
    route, one = routes[at], messages[message]
    row = rng.randrange(len(route.rows))
    kind = rng.randrange(14)
    if kind == 0:
        routes[at] = changed(route, rows=route.rows[:row] + route.rows[row + 1 :])
    elif kind == 1:
        routes[at] = changed(route, rows=(*route.rows, route.rows[row]))
    elif kind == 2:
        routes[at] = changed(
            route, rows=(*route.rows[:row], (route.rows[row] + 1) % len(owner), *route.rows[row + 1 :])
        )
    elif kind == 3:
        del routes[at]
    elif kind == 4:
        routes.append(Route(route.target, route.source, route.rows))
    elif kind == 5:
        del messages[message]
    elif kind == 6:
        messages.append(one)
    elif kind == 7:
        width = rng.randrange(len(one.widths))
        bits = rng.choice([b for b in (0, 1, 2, 3, 8, 16, 32, 255) if b != one.widths[width]])
        messages[message] = changed(one, widths=one.widths[:width] + bytes([bits]) + one.widths[width + 1 :])
    elif kind == 8:
        messages[message] = changed(one, sent=one.sent + rng.choice([-1, 1, 100]))
    elif kind == 9:
        return changed(plan_, peaks=(plan_.peaks[0] - 1, *plan_.peaks[1:]))
    elif kind == 10:
        return changed(plan_, sent=(plan_.sent[0] + 1, *plan_.sent[1:]))
    elif kind == 11:
        rank, layer = rng.randrange(len(holds)), rng.randrange(len(plan_.columns))
        holds[rank] = (*holds[rank][:layer], rng.choice(["none", "x", ""]), *holds[rank][layer + 1 :])
    elif kind == 12:
        return changed(plan_, limit=max(plan_.peaks) - 1)
    else:
        node = rng.choice(route.rows)
        owner[node] = (owner[node] + 1) % plan_.ranks
    return changed(
        plan_, routes=tuple(routes), messages=tuple(messages), owner=tuple(owner), holds=tuple(holds)
    )
