// One step as flat tables, and what a set of re-runs and page-ins costs on it.
//
//   tier 0 ^   +--s--+           +-s-+      last reader of the first copy ... (t, s) ... t
//          |   |     |           |   |
//   tier 1 |   +---------s-------+          with copy engines, the page-out begins when s is made
//          +---+-----+-----------+---+--> runs
//
// A run is a re-run, a page-in or a first run. Memory is counted at runs: what is live before a run,
// and what the run allocates at its peak. Lifetimes of copies are runs [made, end].
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace tightrope::paging {

using i64 = std::int64_t;

struct Rows {
    std::vector<i64> start, item;
    Rows() = default;
    Rows(i64 count, const i64* starts, const i64* items)
        : start(starts, starts + count + 1), item(items, items + starts[count]) {}
    const i64* begin(i64 row) const { return item.data() + start[row]; }
    const i64* end(i64 row) const { return item.data() + start[row + 1]; }
    bool has(i64 row, i64 what) const { return std::find(begin(row), end(row), what) != end(row); }
};

struct Op {
    i64 need, again_need, ns, again_ns, first, last;
};

struct Storage {
    i64 size, slow_size, out_ns, in_ns, producer, pinned, at_end, pageable, toll_ns;
};

struct Tables {
    std::vector<Op> ops;
    std::vector<Storage> storages;
    std::vector<double> out_joules, in_joules;
    Rows reads, again_reads, creates, again_creates;
    i64 engines = 1;
    double watts = 0;
};

// Re-run op `id` in a stage, or page storage `id` in; ordered as they stand in a plan.
struct Decision {
    std::int32_t stage, page, id, lag;
    friend bool operator<(const Decision& a, const Decision& b) {
        if (a.stage != b.stage) return a.stage < b.stage;
        if (a.page != b.page) return a.page < b.page;
        return a.id < b.id;
    }
    bool same(const Decision& other) const {
        return stage == other.stage && page == other.page && id == other.id;
    }
};
using Decisions = std::vector<Decision>;

struct Cost {
    double joules = 0;
    i64 ns = 0, excess = 0, peak = 0, tier_peak = 0, tier_excess = 0;
};

struct Run {
    std::int32_t kind, id, stage;  // kind: 0 first run, 1 re-run, 2 page-in
};

struct Copy {
    std::int32_t storage, made, first_read, last, end, after;
    bool paged, out;
};

class Evaluator {
  public:
    explicit Evaluator(const Tables& tables)
        : tables_(tables), current_(tables.storages.size()), lag_(tables.storages.size()) {}

    const std::vector<Run>& runs() const { return runs_; }
    const std::vector<Copy>& copies() const { return copies_; }
    const std::vector<i64>& memory() const { return memory_; }

    Cost operator()(const Decisions& decisions, i64 limit, i64 tier_limit) {
        build_runs(decisions);
        build_copies();
        mark_page_outs();
        Cost cost;
        count_bytes(limit, cost);
        count_tier(tier_limit, cost);
        count_time(cost);
        return cost;
    }

  private:
    void build_runs(const Decisions& decisions) {
        runs_.clear();
        std::fill(lag_.begin(), lag_.end(), -1);
        first_run_.resize(tables_.ops.size());
        std::size_t next = 0;
        for (std::int32_t stage = 0; stage < static_cast<std::int32_t>(tables_.ops.size()); ++stage) {
            std::size_t pages = next;
            while (pages < decisions.size() && decisions[pages].stage == stage && !decisions[pages].page) ++pages;
            std::size_t end = pages;
            while (end < decisions.size() && decisions[end].stage == stage) ++end;
            waiting_.assign(decisions.begin() + pages, decisions.begin() + end);
            for (const Decision& page : waiting_)
                if (lag_[page.id] < 0) lag_[page.id] = page.lag;
            for (; next < pages; ++next) {
                std::int32_t op = decisions[next].id;
                for (std::size_t i = 0; i < waiting_.size();) {
                    if (!tables_.again_reads.has(op, waiting_[i].id)) { ++i; continue; }
                    runs_.push_back({2, waiting_[i].id, stage});
                    waiting_.erase(waiting_.begin() + i);
                }
                runs_.push_back({1, op, stage});
            }
            for (const Decision& page : waiting_) runs_.push_back({2, page.id, stage});
            next = end;
            first_run_[stage] = static_cast<std::int32_t>(runs_.size());
            runs_.push_back({0, stage, stage});
        }
    }

    void build_copies() {
        copies_.clear();
        begin_copy_.resize(runs_.size() + 1);
        std::fill(current_.begin(), current_.end(), -1);
        for (std::int32_t k = 0; k < static_cast<std::int32_t>(runs_.size()); ++k) {
            begin_copy_[k] = static_cast<std::int32_t>(copies_.size());
            const Run& run = runs_[k];
            if (run.kind == 2) {
                make(run.id, k, true);
                continue;
            }
            const Rows& reads = run.kind ? tables_.again_reads : tables_.reads;
            for (const i64* s = reads.begin(run.id); s != reads.end(run.id); ++s) read(*s, k);
            const Rows& creates = run.kind ? tables_.again_creates : tables_.creates;
            for (const i64* s = creates.begin(run.id); s != creates.end(run.id); ++s) make(*s, k, false);
        }
        begin_copy_[runs_.size()] = static_cast<std::int32_t>(copies_.size());
        for (Copy& copy : copies_)
            if (tables_.storages[copy.storage].at_end) copy.end = static_cast<std::int32_t>(runs_.size());
    }

    void read(i64 storage, std::int32_t k) {
        if (current_[storage] < 0) return;
        Copy& copy = copies_[current_[storage]];
        if (copy.first_read < 0) copy.first_read = k;
        copy.last = copy.end = k;
    }

    void make(i64 storage, std::int32_t k, bool paged) {
        std::int32_t& now = current_[storage];
        if (now >= 0 && tables_.storages[storage].pinned) return;
        if (now >= 0) copies_[now].after = static_cast<std::int32_t>(copies_.size());
        now = static_cast<std::int32_t>(copies_.size());
        copies_.push_back({static_cast<std::int32_t>(storage), k, -1, k, k, -1, paged, false});
    }

    // The copy before the first page of a storage is written out; `lag_` turns to -2 once that is done.
    void mark_page_outs() {
        for (Copy& copy : copies_) {
            std::int32_t lag = lag_[copy.storage];
            if (copy.after < 0 || lag < 0 || !copies_[copy.after].paged) continue;
            lag_[copy.storage] = -2;
            copy.out = true;
            std::int32_t stage = std::min<std::int32_t>(
                runs_[copy.last].stage + lag, static_cast<std::int32_t>(first_run_.size()) - 1);
            std::int32_t late = lag ? first_run_[stage] : copy.last;
            copy.end = std::max(copy.last, std::min(late, copies_[copy.after].made - 1));
        }
    }

    void count_bytes(i64 limit, Cost& cost) {
        change_.assign(runs_.size() + 2, 0);
        for (const Copy& copy : copies_) {
            i64 size = tables_.storages[copy.storage].size;
            change_[copy.made + 1] += size;
            change_[std::min<std::size_t>(copy.end, runs_.size()) + 1] -= size;
        }
        memory_.resize(runs_.size());
        i64 live = 0;
        for (std::size_t k = 0; k < runs_.size(); ++k) {
            live += change_[k];
            const Run& run = runs_[k];
            i64 need = run.kind == 2   ? tables_.storages[run.id].size
                       : run.kind == 1 ? tables_.ops[run.id].again_need
                                       : tables_.ops[run.id].need;
            memory_[k] = live + need;
            cost.peak = std::max(cost.peak, memory_[k]);
            cost.excess += std::max<i64>(0, memory_[k] - limit);
        }
    }

    // A slow copy is held from the begin of its page-out to the end of its storage's last page-in.
    void count_tier(i64 limit, Cost& cost) {
        change_.assign(runs_.size() + 2, 0);
        bool any = false;
        for (const Copy& copy : copies_) {
            if (!copy.out) continue;
            any = true;
            const Copy* last = &copies_[copy.after];
            for (std::int32_t next = copy.after; next >= 0; next = copies_[next].after)
                if (copies_[next].paged) last = &copies_[next];
            i64 size = tables_.storages[copy.storage].slow_size;
            change_[tables_.engines ? copy.made : copy.end] += size;
            change_[last->first_read < 0 ? last->made : last->first_read] -= size;
        }
        i64 held = 0;
        for (std::size_t k = 0; any && k < runs_.size(); ++k) {
            held += change_[k];
            cost.tier_peak = std::max(cost.tier_peak, held);
            cost.tier_excess += std::max<i64>(0, held - limit);
        }
    }

    void count_time(Cost& cost) {
        i64 computing = 0, copying = 0;
        for (const Run& run : runs_) {
            if (run.kind == 2) {
                copying += tables_.storages[run.id].in_ns;
                cost.joules += tables_.in_joules[run.id];
            } else {
                computing += run.kind ? tables_.ops[run.id].again_ns : tables_.ops[run.id].ns;
            }
        }
        for (const Copy& copy : copies_)
            if (copy.out) {
                copying += tables_.storages[copy.storage].out_ns;
                cost.joules += tables_.out_joules[copy.storage];
            }
        cost.joules += tables_.watts * 1e-9 * static_cast<double>(computing);
        cost.ns = tables_.engines && copying ? beside() : computing + copying;
    }

    // Time with copy engines: a copy begins when it is issued or when its engine is free.
    i64 beside() {
        std::size_t count = runs_.size();
        before_.assign(count, -1);
        after_.assign(count, -1);
        next_.resize(copies_.size());
        ready_.resize(copies_.size());
        for (std::int32_t c = 0; c < static_cast<std::int32_t>(copies_.size()); ++c) {
            const Copy& copy = copies_[c];
            if (!copy.paged && !copy.out) continue;
            std::int32_t at = copy.paged ? copy.first_read : copy.end;
            if (at < 0) continue;
            std::vector<std::int32_t>& head = copy.paged ? before_ : after_;
            next_[c] = head[at];
            head[at] = c;
        }
        i64 now = 0, out_free = 0, in_free = 0;
        for (std::size_t k = 0; k < count; ++k) {
            const Run& run = runs_[k];
            for (std::int32_t c = before_[k]; c >= 0; c = next_[c]) now = std::max(now, ready_[c]);
            if (run.kind == 2) {
                i64& engine = tables_.engines == 2 ? in_free : out_free;
                engine = std::max(now, engine) + tables_.storages[run.id].in_ns;
                ready_[begin_copy_[k]] = engine;
                now += tables_.storages[run.id].toll_ns;
                if (copies_[begin_copy_[k]].first_read < 0) now = std::max(now, engine);
                continue_outs(k, now, out_free);
                continue;
            }
            now += run.kind ? tables_.ops[run.id].again_ns : tables_.ops[run.id].ns;
            continue_outs(k, now, out_free);
        }
        return now;
    }

    void continue_outs(std::size_t k, i64& now, i64& out_free) {
        for (std::int32_t c = begin_copy_[k]; c < begin_copy_[k + 1]; ++c)
            if (copies_[c].out) {
                out_free = std::max(now, out_free) + tables_.storages[copies_[c].storage].out_ns;
                ready_[c] = out_free;
                now += tables_.storages[copies_[c].storage].toll_ns;
            }
        for (std::int32_t c = after_[k]; c >= 0; c = next_[c]) now = std::max(now, ready_[c]);
    }

    const Tables& tables_;
    std::vector<Run> runs_;
    std::vector<Copy> copies_;
    std::vector<Decision> waiting_;
    std::vector<std::int32_t> current_, lag_, first_run_, begin_copy_, before_, after_, next_;
    std::vector<i64> change_, memory_, ready_;
};

}  // namespace tightrope::paging
