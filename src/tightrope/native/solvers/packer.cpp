// Offset assignment: buffers with lifetimes and sizes get addresses with the smallest peak.
//
// Idea        Cut the instance into independent parts. On each: first fit in several orders, skyline
//             dives, squeaky wheel, and where those miss the goal two depth-first searches with restarts:
//             on niches, for the buffers and for buffers fused from them, and canonical. Stop at the
//             largest load, which no placement can beat.
// Source      MiniMalloc (Moffitt, ASPLOS 2023) for canonical search, dominance and decomposition; the
//             smallest domain first is that of exact cover (Knuth, 2000); the search on niches, fusion, the
//             skip inference, the memory of failed states, the trials and the address tree are our own.
// Guarantee   An answer always exists. Equal input, options and seed give equal answers, unless the
//             clock stops the run. "infeasible" is said only after a completed search.
// Complexity  First fit is O(n log^2 n) on traces of training steps; the search is exponential and
//             bounded by counted work.
// Gaps        One stream. Blocks of several pieces get first fit and squeaky wheel, no search.
#include "packer_blocks.hpp"
#include "packer_prepare.hpp"
#include "packer_solve.hpp"

namespace {

enum Option { capacity, work, milliseconds, seed, switches };
enum Result { peak, status, witness_time, nodes, method };

}  // namespace

// Sizes, lifetimes, alignments and fixed offsets (-1 = free) of `count` buffers; see the enums above.
extern "C" void tightrope_pack(std::int64_t count, const std::int64_t* size, const std::int64_t* start,
                               const std::int64_t* end, const std::int64_t* align, const std::int64_t* fixed,
                               const std::int64_t* options, std::int64_t* offsets, std::int64_t* results) {
    using namespace packer;
    const Input input{count, size, start, end, align, fixed};
    const Switches use{static_cast<u64>(options[switches])};
    Budget budget{options[work], thread_milliseconds() + options[milliseconds]};
    Prepared prepared = prepare(input, use(Switch::scaling), use(Switch::compression));
    const Bytes granule = prepared.granule;
    std::vector<Offset> placed(count, 0);
    Splitter splitter(use(Switch::zero_cuts), use(Switch::lifelong), placed);
    const std::vector<Part> parts = splitter.split(std::move(prepared.whole));
    const Bytes limit = options[capacity] < 0 ? -1 : options[capacity] / granule;
    const Budget asking = split_for_asking(parts, budget);
    Solver solver(parts, prepared.load, use, limit, static_cast<u64>(options[seed]), budget, asking);
    const Status outcome = solver.run(placed);
    Bytes highest = 0;
    for (i64 j = 0; j < count; ++j) {
        offsets[j] = size[j] == 0 && fixed[j] >= 0 ? fixed[j] : placed[j] * granule;
        if (size[j] > 0) highest = std::max(highest, offsets[j] + size[j]);
    }
    results[peak] = highest;
    results[status] = static_cast<i64>(outcome);
    results[witness_time] = prepared.witness_time;
    results[nodes] = solver.nodes();
    results[method] = static_cast<i64>(solver.method());
}

// Blocks of pieces, see `Blocks`; `options` are goal, work, milliseconds and seed, `results` the peak.
extern "C" void tightrope_pack_blocks(std::int64_t count, const std::int64_t* const* columns,
                                      const std::int64_t* options, std::int64_t* offsets,
                                      std::int64_t* results) {
    using namespace packer;
    const Blocks blocks{count,      columns[0], columns[1], columns[2], columns[3],  columns[4],
                        columns[5], columns[6], columns[7], columns[8], columns[9], columns[10]};
    Budget budget{options[1], thread_milliseconds() + options[2]};
    BlockPacker packer(blocks, static_cast<u64>(options[3]), budget);
    packer.run(options[0]);
    std::copy(packer.offsets().begin(), packer.offsets().end(), offsets);
    results[0] = packer.peak();
}
