// C interface of the search over re-runs and page-ins; see paging_search.hpp.
#include "paging_search.hpp"

using namespace tightrope::paging;

namespace {
Decisions read(const i64* rows, i64 count) {
    Decisions decisions(count);
    for (i64 i = 0; i < count; ++i)
        decisions[i] = {static_cast<std::int32_t>(rows[4 * i]), static_cast<std::int32_t>(rows[4 * i + 1]),
                        static_cast<std::int32_t>(rows[4 * i + 2]), static_cast<std::int32_t>(rows[4 * i + 3])};
    std::sort(decisions.begin(), decisions.end());
    return decisions;
}
}  // namespace

extern "C" {

// ops: 6 per op, storages: 9 per storage, joules: out and in per storage; rows as starts and items.
void* tightrope_paging_new(i64 num_ops, i64 num_storages, const i64* ops, const i64* storages,
                           const double* joules, const i64* reads, const i64* read_items, const i64* again,
                           const i64* again_items, const i64* creates, const i64* create_items,
                           const i64* remakes, const i64* remake_items, i64 engines, double watts) {
    Tables tables;
    for (i64 i = 0; i < num_ops; ++i, ops += 6)
        tables.ops.push_back({ops[0], ops[1], ops[2], ops[3], ops[4], ops[5]});
    for (i64 i = 0; i < num_storages; ++i, storages += 9, joules += 2) {
        tables.storages.push_back({storages[0], storages[1], storages[2], storages[3], storages[4],
                                   storages[5], storages[6], storages[7], storages[8]});
        tables.out_joules.push_back(joules[0]);
        tables.in_joules.push_back(joules[1]);
    }
    tables.reads = Rows(num_ops, reads, read_items);
    tables.again_reads = Rows(num_ops, again, again_items);
    tables.creates = Rows(num_ops, creates, create_items);
    tables.again_creates = Rows(num_ops, remakes, remake_items);
    tables.engines = engines;
    tables.watts = watts;
    return new Search(std::move(tables));
}

void tightrope_paging_delete(void* search) { delete static_cast<Search*>(search); }

void tightrope_paging_load(void* search, const i64* rows, i64 count) {
    static_cast<Search*>(search)->current = read(rows, count);
}

// out: joules, ns, excess, peak, tier peak, tier excess of the current set.
void tightrope_paging_state(void* search, i64 limit, i64 tier_limit, double* out) {
    Search& self = *static_cast<Search*>(search);
    Cost cost = self.cost(self.current, limit, tier_limit);
    out[0] = cost.joules;
    out[1] = static_cast<double>(cost.ns);
    out[2] = static_cast<double>(cost.excess);
    out[3] = static_cast<double>(cost.peak);
    out[4] = static_cast<double>(cost.tier_peak);
    out[5] = static_cast<double>(cost.tier_excess);
}

// goal: limit, tier limit, ns limit (0 = none), by joules, may re-run, may page.
void tightrope_paging_begin(void* search, const i64* goal, double joule_limit, std::uint64_t seed,
                            i64 iterations, double heat) {
    Goal asked{goal[0], goal[1], goal[2], goal[3], joule_limit, goal[4] != 0, goal[5] != 0};
    static_cast<Search*>(search)->begin(asked, seed, iterations, heat);
}

i64 tightrope_paging_run(void* search, i64 steps) { return static_cast<Search*>(search)->run(steps); }

// Returns the size of the best fitting set, -1 when none fitted.
i64 tightrope_paging_best(void* search, double* value) {
    Search& self = *static_cast<Search*>(search);
    *value = self.best_value;
    return std::isinf(self.best_value) ? -1 : static_cast<i64>(self.best.size());
}

void tightrope_paging_read_best(void* search, i64* rows) {
    for (const Decision& d : static_cast<Search*>(search)->best) {
        *rows++ = d.stage;
        *rows++ = d.page;
        *rows++ = d.id;
        *rows++ = d.lag;
    }
}
}
