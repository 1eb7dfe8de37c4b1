// Search over sets of recomputations, with exact bytes at every event.
//
// Idea        A plan is a set of pairs (t, u): run op u again just before the first run of op t.
//             A storage is kept from a creation to the last reader before its next creation, so
//             every set is valid and only bytes decide. Adding or removing one pair changes the
//             lifetimes of a handful of storages: each change is one range addition to the byte
//             profile, and the sum of bytes over the limit is kept up to date beside it.
//             Greedy eviction gives the first sets, simulated annealing improves them.
// Guarantee   Profile, time and excess are exact after every add and remove. Same calls, same answers.
// Complexity  O(degree + lifetime) per add or remove; O(ops + storages + pairs) memory.
// Gaps        The order of first runs is fixed, and no optimality is proved.
#include "solver_order.hpp"
#include "solver_rebuild.hpp"

namespace {

using namespace tightrope;
using Search = Rebuild;

void write(const std::vector<Pair>& pairs, i64* out) {
    for (std::size_t i = 0; i < pairs.size(); ++i) out[2 * i] = pairs[i].stage, out[2 * i + 1] = pairs[i].op;
}

}  // namespace

extern "C" {

// op_rows: bytes needed by the first run, by a re-run, ns of a re-run, first and last stage of a re-run, the
// stages in between at which it may not run, what the first run and a re-run may write over, the part.
// storage_rows: bytes, producer, pinned, read by the end.
void* tightrope_solver_new(i64 ops, i64 storages, const i64* op_rows, const i64* storage_rows,
                           const i64* read_start, const i64* read_item, const i64* again_start,
                           const i64* again_item, const i64* create_start, const i64* create_item) {
    return new Search(Profile(ops, storages, op_rows, storage_rows, read_start, read_item, again_start, again_item,
                              create_start, create_item));
}

void tightrope_solver_delete(void* search) { delete static_cast<Search*>(search); }

void tightrope_solver_load(void* search, const i64* pairs, i64 count) { static_cast<Search*>(search)->load(pairs, count); }

// out: extra ns, bytes over the limit summed over events, peak bytes, number of pairs.
void tightrope_solver_state(void* search, double limit, double* out) {
    auto& s = *static_cast<Search*>(search);
    s.profile.set_limit(limit);
    out[0] = s.profile.ns, out[1] = s.profile.excess, out[2] = s.profile.peak();
    out[3] = static_cast<double>(s.profile.again_key.size());
}

void tightrope_solver_read(void* search, i64* out) { write(static_cast<Search*>(search)->pairs(), out); }

int tightrope_solver_greedy(void* search, double limit, i64 rule, int far) {
    return static_cast<Search*>(search)->greedy(limit, rule, far != 0);
}

void tightrope_solver_begin(void* search, double limit, std::uint64_t seed, i64 iterations, int mode, double heat) {
    static_cast<Search*>(search)->begin(limit, seed, iterations, static_cast<Mode>(mode), heat);
}

i64 tightrope_solver_run(void* search, i64 iterations) { return static_cast<Search*>(search)->run(iterations); }

// out: extra ns and peak of the best set so far (infinite when none fits), number of pairs.
void tightrope_solver_best(void* search, double* out) {
    const auto& s = *static_cast<Search*>(search);
    out[0] = s.best_ns, out[1] = s.best_peak, out[2] = static_cast<double>(s.best.size());
}

void tightrope_solver_read_best(void* search, i64* out) { write(static_cast<Search*>(search)->best, out); }

// storage_rows: bytes, producer or -1, live after the last op. before: ops that each op must follow.
void* tightrope_order_new(i64 ops, i64 storages, const i64* need, const i64* storage_rows, const i64* read_start,
                          const i64* read_item, const i64* before_start, const i64* before_item) {
    return new Order(ops, storages, need, storage_rows, read_start, read_item, before_start, before_item);
}

void tightrope_order_delete(void* order) { delete static_cast<Order*>(order); }

// out: peak bytes, bytes over the limit summed over positions.
void tightrope_order_load(void* order, const i64* ops, double limit, double* out) {
    auto& o = *static_cast<Order*>(order);
    o.load(ops);
    out[0] = o.peak(), out[1] = o.over(limit);
}

void tightrope_order_begin(void* order, double limit, std::uint64_t seed, i64 iterations, int shrink, double heat) {
    static_cast<Order*>(order)->begin(limit, seed, iterations, shrink != 0, heat);
}

i64 tightrope_order_run(void* order, i64 iterations) { return static_cast<Order*>(order)->run(iterations); }

void tightrope_order_read(void* order, i64* out) {
    const auto& best = static_cast<Order*>(order)->best;
    std::copy(best.begin(), best.end(), out);
}
}
