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
#include "solver_profile.hpp"

#include <cmath>
#include <cstddef>

namespace {

using namespace tightrope;
constexpr std::size_t kLongest = 48, kLongestMove = 12;  // ops in one chain of recomputations

// splitmix64: small, fast and the same everywhere.
struct Random {
    std::uint64_t state = 0;
    std::uint64_t next() {
        std::uint64_t z = (state += 0x9E3779B97F4A7C15ULL);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        return z ^ (z >> 31);
    }
    i64 below(i64 bound) { return static_cast<i64>((static_cast<unsigned __int128>(next()) * bound) >> 64); }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
};

struct Change {
    bool added;
    Pair pair;
};

class Search {
  public:
    Profile profile;
    std::vector<Pair> best;
    double best_ns = kInf, best_peak = kInf;

    explicit Search(Profile&& p) : profile(std::move(p)) {
        for (i64 s = 0; s < profile.num_storages; ++s) {
            const i64 op = profile.producer[s];
            if (op >= 0 && !profile.sticky[s] && profile.size[s] > 0 && profile.last[op] > op) evictable_.push_back(s);
        }
    }

    void load(const i64* pairs, i64 count) {
        profile.clear();
        for (i64 i = 0; i < count; ++i) profile.add({pairs[2 * i], pairs[2 * i + 1]});
    }

    // ---- greedy ----------------------------------------------------------------------------------

    // Walk the events; where bytes exceed the limit, drop the idle storage with the least score and
    // plan its recomputation, with dead inputs, before its next reader. Returns whether every event fits.
    bool greedy(double limit, i64 rule) {
        profile.clear();
        profile.set_limit(limit);
        for (i64 at = over_from(0); at >= 0;) {
            std::vector<Pair> chain, candidate;
            double least = kInf;
            for (i64 s : evictable_) {
                candidate.clear();
                const double score = price(s, at, rule, candidate);
                if (score < least) least = score, chain = candidate;
            }
            for (const Pair& p : chain) profile.add(p);
            at = over_from(chain.empty() ? at + 1 : at);
        }
        prune();
        return profile.excess <= 0;
    }

    // Remove every pair that costs time without being needed for bytes, dearest first.
    void prune() {
        std::vector<i64> keys = profile.again_key;
        std::stable_sort(keys.begin(), keys.end(), [&](i64 a, i64 b) {
            return profile.again_ns[a % profile.stride] > profile.again_ns[b % profile.stride];
        });
        for (i64 at : keys) {
            const double before = profile.excess;
            profile.remove(profile.pair(at));
            if (profile.excess > before) profile.add(profile.pair(at));
        }
    }

    // ---- annealing -------------------------------------------------------------------------------

    void begin(double limit, std::uint64_t seed, i64 iterations, bool shrink, double heat) {
        profile.set_limit(limit);
        random_.state = seed * 0x9E3779B97F4A7C15ULL + 0x1234567;
        total_ = iterations, done_ = 0, shrink_ = shrink, heat_ = heat, fitting_ = 0;
        best.clear();
        best_ns = best_peak = kInf;
        double bytes = 0;
        for (i64 s : evictable_) bytes += profile.size[s];
        bytes_unit_ = evictable_.empty() ? 1 : bytes / static_cast<double>(evictable_.size());
        ns_unit_ = price_unit();
        weight_ = 1;
        keep();
    }

    i64 run(i64 iterations) {
        const i64 stop = std::min(done_ + iterations, total_);
        for (; done_ < stop; ++done_) {
            if (done_ % 64 == 0) adapt();
            const double excess = profile.excess, ns = profile.ns;
            log_.clear();
            move();
            if (log_.empty()) continue;
            const double delta = (profile.ns - ns) / ns_unit_ + weight_ * (profile.excess - excess) / bytes_unit_;
            if (delta > 0 && random_.uniform() >= std::exp(-delta / temperature_))
                undo();
            else
                keep();
        }
        return total_ - done_;
    }

  private:
    std::vector<i64> evictable_;
    std::vector<Change> log_;
    std::vector<Pair> chain_;
    Random random_;
    i64 total_ = 0, done_ = 0, fitting_ = 0;
    bool shrink_ = false;
    double heat_ = 1, temperature_ = 1, weight_ = 1, bytes_unit_ = 1, ns_unit_ = 1;

    // First event at or after `from` over the limit, or -1.
    i64 over_from(i64 from) const {
        i64 slot = std::lower_bound(profile.again_key.begin(), profile.again_key.end(), from) - profile.again_key.begin();
        i64 stage = from / profile.stride + (from % profile.stride > from / profile.stride ? 1 : 0);
        while (stage < profile.num_ops && profile.base[stage] <= profile.limit) ++stage;
        const i64 key = stage < profile.num_ops ? profile.key(stage, stage) : profile.end_key;
        while (slot < static_cast<i64>(profile.again_key.size()) && profile.again[slot] <= profile.limit) ++slot;
        const i64 again = slot < static_cast<i64>(profile.again_key.size()) ? profile.again_key[slot] : profile.end_key;
        const i64 found = std::min(key, again);
        return found == profile.end_key ? -1 : found;
    }

    // Stage before which s must be run again when its copy is dropped at event `at`; -1 = it cannot be.
    i64 next_use(i64 s, i64 at) const {
        const i64 op = profile.producer[s];
        if (op >= at / profile.stride) return -1;
        const i64 reader = profile.reader_after(s, at);
        if (reader < 0 || reader == profile.end_key) return -1;
        const i64 stage = reader / profile.stride, again = profile.key(stage, op);
        if (!profile.allowed(stage, op) || again <= at || profile.has(again)) return -1;
        const auto& m = profile.made[s];
        auto it = m.end();
        while (it != m.begin() && *(it - 1) >= reader) --it;
        if (*(it - 1) >= at) return -1;
        const auto& r = profile.read[s];
        return std::binary_search(r.begin(), r.end(), at) ? -1 : stage;
    }

    // Collect op and every op whose outputs it needs and that are gone by `at`, for re-running at `stage`.
    bool collect(i64 stage, i64 op, i64 at, std::size_t most, std::vector<Pair>& chain) const {
        if (std::find(chain.begin(), chain.end(), Pair{stage, op}) != chain.end()) return true;
        const i64 again = profile.key(stage, op);
        if (!profile.allowed(stage, op) || again <= at || profile.has(again) || chain.size() >= most) return false;
        chain.push_back({stage, op});
        for (const i64* s = profile.again_reads.begin(op); s != profile.again_reads.end(op); ++s) {
            if (profile.sticky[*s] || profile.copy(*s, again).stop >= at) continue;
            if (profile.producer[*s] == op || !collect(stage, profile.producer[*s], at, most, chain)) return false;
        }
        return true;
    }

    double price(i64 s, i64 at, i64 rule, std::vector<Pair>& chain) const {
        const i64 stage = next_use(s, at);
        if (stage < 0 || !collect(stage, profile.producer[s], at, kLongest, chain)) return kInf;
        double ns = 1;
        for (const Pair& p : chain) ns += profile.again_ns[p.op];
        const double distance = static_cast<double>(stage - at / profile.stride + 1), bytes = profile.size[s];
        switch (rule) {
            case 0: return ns / (bytes * distance);
            case 1: return ns / bytes;
            case 2: return -bytes;
            case 3: return -distance;
            default: return ns / distance;
        }
    }

    double price_unit() const {
        if (!profile.again_key.empty()) return std::max(1.0, profile.ns / static_cast<double>(profile.again_key.size()));
        double ns = 0;
        for (i64 s : evictable_) ns += profile.again_ns[profile.producer[s]];
        return evictable_.empty() ? 1 : std::max(1.0, ns / static_cast<double>(evictable_.size()));
    }

    void adapt() {
        const double share = static_cast<double>(done_) / static_cast<double>(std::max<i64>(total_, 1));
        temperature_ = heat_ * std::pow(0.01 / heat_, share);
        weight_ = std::clamp(profile.excess > 0 ? weight_ * 1.02 : weight_ / 1.02, 1e-3, 1e6);
    }

    void keep() {
        if (profile.excess > 0.5) return;
        if (shrink_) {
            best_peak = profile.peak();
            best_ns = profile.ns;
            save();
            profile.set_limit(best_peak - std::max(1.0, 0.002 * best_peak));
        } else if (profile.ns < best_ns) {
            best_ns = profile.ns;
            best_peak = profile.limit;
            save();
        }
    }

    void save() {
        best.clear();
        for (i64 at : profile.again_key) best.push_back(profile.pair(at));
    }

    void add(Pair p) {
        if (!profile.allowed(p.stage, p.op) || profile.has(profile.key(p.stage, p.op))) return;
        profile.add(p);
        log_.push_back({true, p});
    }
    void remove(Pair p) {
        profile.remove(p);
        log_.push_back({false, p});
    }
    void undo() {
        for (auto it = log_.rbegin(); it != log_.rend(); ++it)
            if (it->added)
                profile.remove(it->pair);
            else
                profile.add(it->pair);
    }

    i64 any_pair() { return random_.below(static_cast<i64>(profile.again_key.size())); }

    void move() {
        const bool empty = profile.again_key.empty();
        const double choice = random_.uniform();
        if (empty || choice < 0.35) {
            evict(profile.excess > 0.5 ? any_over() : any_event());
        } else if (choice < 0.50) {
            remove(profile.pair(profile.again_key[any_pair()]));
        } else if (choice < 0.75) {
            shift_pair();
        } else if (choice < 0.90) {
            const Pair p = profile.pair(profile.again_key[any_pair()]);
            remove(p);
            evict(profile.excess > 0.5 ? any_over() : any_event());
        } else {
            add_input();
        }
    }

    i64 any_event() {
        const i64 events = profile.num_ops + static_cast<i64>(profile.again_key.size());
        const i64 pick = random_.below(events);
        return pick < profile.num_ops ? profile.key(pick, pick) : profile.again_key[pick - profile.num_ops];
    }
    i64 any_over() {
        const i64 at = over_from(any_event());
        return at >= 0 ? at : over_from(0);
    }

    // Drop one idle storage at event `at`, preferring many bytes per nanosecond of recomputation.
    void evict(i64 at) {
        if (at < 0 || evictable_.empty()) return;
        const i64 rounds = random_.uniform() < 0.7 ? 4 : 1;
        i64 chosen = -1, stage = -1;
        double most = -1;
        for (i64 probe = 0, found = 0; probe < 48 && found < rounds; ++probe) {
            const i64 s = evictable_[random_.below(static_cast<i64>(evictable_.size()))];
            const i64 use = next_use(s, at);
            if (use < 0) continue;
            ++found;
            const double worth = profile.size[s] / (1 + profile.again_ns[profile.producer[s]]) * random_.uniform();
            if (worth > most) most = worth, chosen = s, stage = use;
        }
        if (chosen < 0) return;
        const i64 op = profile.producer[chosen];
        chain_.clear();
        if (random_.uniform() < 0.4 && collect(stage, op, at, kLongestMove, chain_))
            for (const Pair& p : chain_) add(p);
        else
            add({stage, op});
    }

    void shift_pair() {
        const Pair p = profile.pair(profile.again_key[any_pair()]);
        i64 stage = -1;
        if (random_.uniform() < 0.5) {
            stage = p.stage + (random_.below(2) != 0 ? 1 : -1) * (1 + random_.below(5));
        } else {
            const i64* from = profile.again_creates.begin(p.op);
            const i64 outputs = profile.again_creates.end(p.op) - from;
            if (outputs == 0) return;
            const auto& readers = profile.read[from[random_.below(outputs)]];
            if (readers.empty()) return;
            stage = readers[random_.below(static_cast<i64>(readers.size()))] / profile.stride;
        }
        if (stage == p.stage || stage >= profile.num_ops || !profile.allowed(stage, p.op)) return;
        if (profile.has(profile.key(stage, p.op))) return;
        remove(p);
        add({stage, p.op});
    }

    void add_input() {
        const Pair p = profile.pair(profile.again_key[any_pair()]);
        const i64* from = profile.again_reads.begin(p.op);
        const i64 inputs = profile.again_reads.end(p.op) - from;
        if (inputs == 0) return;
        const i64 s = from[random_.below(inputs)];
        if (!profile.sticky[s] && profile.producer[s] != p.op) add({p.stage, profile.producer[s]});
    }
};

void write(const std::vector<Pair>& pairs, i64* out) {
    for (std::size_t i = 0; i < pairs.size(); ++i) out[2 * i] = pairs[i].stage, out[2 * i + 1] = pairs[i].op;
}

std::vector<Pair> current(const Search& s) {
    std::vector<Pair> pairs;
    for (i64 at : s.profile.again_key) pairs.push_back(s.profile.pair(at));
    return pairs;
}

}  // namespace

extern "C" {

// op_rows: bytes needed by the first run, by a re-run, ns of a re-run, first and last stage of a re-run.
// storage_rows: bytes, producer, sticky, read by the end.
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

void tightrope_solver_read(void* search, i64* out) { write(current(*static_cast<Search*>(search)), out); }

int tightrope_solver_greedy(void* search, double limit, i64 rule) { return static_cast<Search*>(search)->greedy(limit, rule); }

void tightrope_solver_begin(void* search, double limit, std::uint64_t seed, i64 iterations, int shrink, double heat) {
    static_cast<Search*>(search)->begin(limit, seed, iterations, shrink != 0, heat);
}

i64 tightrope_solver_run(void* search, i64 iterations) { return static_cast<Search*>(search)->run(iterations); }

// out: extra ns and peak of the best set so far (infinite when none fits), number of pairs.
void tightrope_solver_best(void* search, double* out) {
    const auto& s = *static_cast<Search*>(search);
    out[0] = s.best_ns, out[1] = s.best_peak, out[2] = static_cast<double>(s.best.size());
}

void tightrope_solver_read_best(void* search, i64* out) { write(static_cast<Search*>(search)->best, out); }
}
