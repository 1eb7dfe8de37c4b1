// All parts of an instance: the one with the highest peak is worked on until it is low enough.
#pragma once

#include "packer_prepare.hpp"
#include "packer_task.hpp"

namespace packer {

enum class Status { optimal, feasible, infeasible, time_limit };

// `limit` is the capacity asked for, -1 = make the peak small. A capacity ends the search early and adds
// probes that ask for it; all else is the same search with the same part of the budget, so a peak above the
// capacity is never higher than the peak that is found without one, unless the clock stops a run or the
// capacity is refuted: a proof ends the search at once.
class Solver {
   public:
    // `asking` = what the probes for exactly the capacity may cost.
    Solver(const std::vector<Part>& parts, Bytes load, Switches use, Bytes limit, u64 seed, Budget budget, Budget asking)
        : parts_(parts), limit_(limit), budget_(budget), asking_(asking), bound_(load) {
        for (const Part& part : parts) bound_ = std::max(bound_, part.base + part.load);
        for (const Part& part : parts) tasks_.emplace_back(part, use, seed + tasks_.size(), budget_);
    }

    Status run(std::vector<Offset>& offset) {
        const Bytes goal = std::max(limit_, bound_);
        for (Task& task : tasks_) task.cheap(goal);
        Bytes refuted = bound_ - 1;
        while (!tasks_.empty() && !budget_.over()) {
            Task& worst = *std::max_element(tasks_.begin(), tasks_.end(),
                                            [](const Task& a, const Task& b) { return a.peak() < b.peak(); });
            if (worst.peak() <= std::max(goal, refuted + 1) || (limit_ >= 0 && refuted >= limit_)) break;
            if (!worst.searchable()) worst.squeak();
            else if (limit_ > std::max(bound_, refuted) && may_ask()) worst.ask(limit_, asking_);
            else worst.probe(std::max(bound_, refuted + 1));
            refuted = std::max(refuted, worst.refuted());
        }
        return finish(offset, refuted);
    }

    i64 spent() const { return budget_.total - budget_.work_left; }
    i64 nodes() const {
        i64 sum = 0;
        for (const Task& task : tasks_) sum += task.nodes();
        return sum;
    }
    Method method() const {
        Method strongest = Method::first_fit;
        for (const Task& task : tasks_) strongest = std::max(strongest, task.method());
        return strongest;
    }

   private:
    // Ask first for a while, then keep to the part of the work that is meant for it.
    bool may_ask() {
        const double asked = static_cast<double>(asking_.total - asking_.work_left) / static_cast<double>(asking_.total);
        return !asking_.over() && asked < 0.1 + static_cast<double>(spent()) / static_cast<double>(budget_.total);
    }

    Status finish(std::vector<Offset>& offset, Bytes refuted) const {
        Bytes peak = bound_;  // buffers outside every part never lie above the load
        for (std::size_t at = 0; at < tasks_.size(); ++at) {
            const Part& part = parts_[at];
            peak = std::max(peak, tasks_[at].peak());
            for (Index j = 0; j < part.count(); ++j) offset[part.id[j]] = part.base + tasks_[at].best().offset[j];
        }
        if (limit_ >= 0 && refuted >= limit_) return Status::infeasible;
        if (peak <= refuted + 1) return Status::optimal;
        return limit_ < 0 || peak <= limit_ ? Status::feasible : Status::time_limit;
    }

    const std::vector<Part>& parts_;
    Bytes limit_;
    Budget budget_, asking_;
    std::vector<Task> tasks_;
    Bytes bound_;
};

inline std::vector<Offset> solve_apart(Part part, Switches use, u64 seed, i64 work, Budget& budget) {
    std::vector<Offset> offset(*std::max_element(part.id.begin(), part.id.end()) + 1, 0);
    const auto loads = part.loads();
    const Bytes load = *std::max_element(loads.begin(), loads.end());
    Splitter splitter(use(Switch::zero_cuts), use(Switch::lifelong), offset);
    const std::vector<Part> parts = splitter.split(std::move(part));
    Budget share{work, budget.deadline};
    use.bits &= ~(u64{1} << static_cast<int>(Switch::hot_core));
    Solver solver(parts, load, use, -1, seed, share, Budget{});
    solver.run(offset);
    budget.spend(solver.spent());
    return offset;
}

// A quarter of the work, where there is something to search: without a capacity it is not used.
inline Budget split_for_asking(const std::vector<Part>& parts, Budget& budget) {
    const auto searched = [](const Part& part) { return part.count() <= kSearchable; };
    Budget asking{std::all_of(parts.begin(), parts.end(), searched) ? budget.work_left / 4 : 0, budget.deadline};
    budget.work_left -= asking.work_left, budget.total = budget.work_left;
    return asking;
}

}  // namespace packer
