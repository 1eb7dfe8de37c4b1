// Minimum s-t cut and maximum flow by Dinic's algorithm: levels by breadth-first search, then blocking flows.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace {
using i64 = std::int64_t;

struct Flow {
    struct Edge {
        i64 to, room;
    };
    std::vector<Edge> edges;  // edge i and its reverse i ^ 1
    std::vector<std::vector<i64>> out;
    std::vector<i64> level, next;

    explicit Flow(i64 vertices) : out(vertices), level(vertices), next(vertices) {}

    void add(i64 from, i64 to, i64 capacity) {
        out[from].push_back(static_cast<i64>(edges.size()));
        edges.push_back({to, capacity});
        out[to].push_back(static_cast<i64>(edges.size()));
        edges.push_back({from, 0});
    }

    bool levels(i64 source, i64 sink) {
        std::fill(level.begin(), level.end(), -1);
        std::vector<i64> queue{source};
        level[source] = 0;
        for (std::size_t i = 0; i < queue.size(); ++i)
            for (i64 e : out[queue[i]])
                if (edges[e].room > 0 && level[edges[e].to] < 0) {
                    level[edges[e].to] = level[queue[i]] + 1;
                    queue.push_back(edges[e].to);
                }
        return level[sink] >= 0;
    }

    // Push along one path of the level graph; a path on the stack instead of recursion.
    i64 push(i64 source, i64 sink) {
        std::vector<i64> path;
        i64 at = source;
        while (at != sink) {
            bool moved = false;
            for (i64& i = next[at]; i < static_cast<i64>(out[at].size()); ++i) {
                const Edge& edge = edges[out[at][i]];
                if (edge.room > 0 && level[edge.to] == level[at] + 1) {
                    path.push_back(out[at][i]);
                    at = edge.to;
                    moved = true;
                    break;
                }
            }
            if (moved) continue;
            if (path.empty()) return 0;
            level[at] = -1;
            at = edges[path.back() ^ 1].to;
            path.pop_back();
            ++next[at];
        }
        i64 least = std::numeric_limits<i64>::max();
        for (i64 e : path) least = std::min(least, edges[e].room);
        for (i64 e : path) {
            edges[e].room -= least;
            edges[e ^ 1].room += least;
        }
        return least;
    }
};

struct Pushed {
    Flow flow;
    i64 total = 0;

    Pushed(i64 vertices, i64 num_edges, const i64* edges, i64 source, i64 sink) : flow(vertices) {
        for (i64 i = 0; i < num_edges; ++i) flow.add(edges[3 * i], edges[3 * i + 1], edges[3 * i + 2]);
        while (flow.levels(source, sink)) {
            std::fill(flow.next.begin(), flow.next.end(), 0);
            while (i64 pushed = flow.push(source, sink)) total += pushed;
        }
    }
};
}  // namespace

extern "C" {

// edges: from, to, capacity per edge. side[v] = 1 where v is on the source's side of the smallest cut
// that is nearest to the source. Returns the capacity of the cut.
i64 tightrope_mincut(i64 vertices, i64 num_edges, const i64* edges, i64 source, i64 sink, i64* side) {
    const Pushed found(vertices, num_edges, edges, source, sink);
    for (i64 v = 0; v < vertices; ++v) side[v] = found.flow.level[v] >= 0;
    return found.total;
}

// The largest flow; flows[i] = what edge i carries.
i64 tightrope_maxflow(i64 vertices, i64 num_edges, const i64* edges, i64 source, i64 sink, i64* flows) {
    const Pushed found(vertices, num_edges, edges, source, sink);
    for (i64 i = 0; i < num_edges; ++i) flows[i] = found.flow.edges[2 * i + 1].room;
    return found.total;
}
}
