// Reuse of memory across streams: which storages may share addresses, what that costs, and where they go.
//
// Idea        Streams are chains, so what has ended when an op starts is one number per stream (a vector
//             clock), and a storage is dead for a stream from one position on. Those numbers are the
//             whole relation; the heaviest set alive together is one maximum flow over them.
// Source      Lamprou et al., "Safe optimized static memory allocation for parallel deep learning"
//             (MLSys 2023) for the problem; Fidge and Mattern for vector clocks; Dilworth for the bound.
// Guarantee   The relation is exact, the antichain is heaviest, a layout never overlaps conflicting
//             storages. Equal input and seed give equal answers.
// Complexity  N ops, S streams, T storages: O((N + waits) S) and O(T S^2 log N) for the relation; a phase
//             of the flow is O(T S); a layout O(T^2) in time and T^2 / 8 bytes.
// Gaps        Layouts are heuristic: first fit, dives and squeaky wheel, without a search.
#include "safety_clocks.hpp"
#include "safety_flow.hpp"
#include "safety_pack.hpp"

using namespace safety;

extern "C" {

void tightrope_clocks(i64 num_ops, i64 num_streams, const Stream* stream, const Position* position,
                      const i64* base, i64 num_waits, const i64* waits, Position* out) {
    clocks({num_ops, num_streams, stream, position, base}, num_waits, waits, out);
}

void tightrope_note_uses(i64 num_streams, const Stream* stream, const Position* position, i64 num_rows,
                         const i64* rows, Position* last) {
    note_uses({0, num_streams, stream, position, nullptr}, num_rows, rows, last);
}

void tightrope_deaths(i64 num_streams, const i64* base, const Position* clock, i64 num_storages,
                      const Position* last, const u8* resident, Position* out) {
    deaths(num_streams, base, clock, num_storages, last, resident, out);
}

void tightrope_hazard(i64 num_streams, const Stream* stream, const Position* position, const i64* base,
                      const Position* clock, i64 num_storages, const i64* writer, i64 num_reads,
                      const i64* reads, i64 num_mutates, const i64* mutates, i64* out) {
    const Issue issue{0, num_streams, stream, position, base};
    Groups by_read(num_storages, num_reads, reads, reads + 1, 2);
    Groups by_change(num_storages, num_mutates, mutates, mutates + 1, 2);
    const Hazard found = Hazards(issue, clock).find(num_storages, writer, by_read, by_change);
    out[0] = found.storage, out[1] = found.earlier, out[2] = found.later;
}

// results: weight of the heaviest antichain, and the first storage that lifts it above the budget.
void tightrope_antichain(i64 num_storages, i64 num_streams, const i64* size, const Stream* stream,
                         const Position* position, const Position* death, i64 budget, u8* witness,
                         i64* results) {
    Antichain antichain(Index(num_storages), Index(num_streams), size, stream, position, death);
    results[1] = antichain.grow(budget);
    results[0] = antichain.weight();
    for (Index j = 0; j < num_storages; ++j) witness[j] = antichain.witness(j);
}

void tightrope_place_streams(i64 num_storages, i64 num_streams, const i64* size, const i64* align,
                             const Stream* stream, const Position* position, const Position* death, i64 goal,
                             i64 work, i64 seed, i64* offsets, i64* results) {
    const Items items{Index(num_storages), Index(num_streams), size, align, stream, position, death};
    StreamPlacer placer(items, goal, work, std::uint64_t(seed));
    const Layout layout = placer.run();
    std::copy(layout.offset.begin(), layout.offset.end(), offsets);
    results[0] = layout.peak, results[1] = placer.method();
}

}  // extern "C"
