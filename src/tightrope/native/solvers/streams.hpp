// Streams with deadlines: what a plan (a processor and a rank per frame) leads to, and its score.
//
// The rules are those of tightrope_fleet.streams.simulate with the decisions of `follow`; a test compares both
// on random plans. Times are doubles: milliseconds rounded to single precision in compatible rules, else whole
// nanoseconds, which a double holds exactly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace streams {

struct Question {
  int models, processors, frames;
  bool compatible;
  double arena;
  std::vector<int> first;                         // by model: its first frame among all frames
  std::vector<double> release, deadline, ticks;   // by frame; ascending
  std::vector<char> wanted;                       // by frame
  std::vector<double> duration, energy;           // by processor and model; energy: the factor of a frame's score
  std::vector<double> page, quality, weights, activations;  // by model
  std::vector<int> names;                         // models by name
  std::vector<std::vector<int>> above;            // by model: what it waits for
  std::vector<std::vector<std::vector<int>>> needs;  // by model and upstream: which frame

  int count(int m) const { return first[m + 1] - first[m]; }
};

class Simulation {
 public:
  explicit Simulation(const Question& question) : q(question) {}

  // Score of a plan, of 100. processor: by frame, -1 = dropped as soon as it appears; rank: order on a processor.
  // starts: by frame, when it started, or -1.
  double score(const int64_t* processor, const double* rank, double* starts) {
    begin(processor, rank);
    std::fill(starts, starts + q.frames, -1.0);
    while (true) {
      see();
      retire();
      drop(processor);
      dispatch(starts);
      if (q.compatible && unseen == 0) break;
      while (tick < q.ticks.size() && q.ticks[tick] <= now) ++tick;
      double next = std::numeric_limits<double>::infinity();
      if (tick < q.ticks.size()) next = q.ticks[tick];
      for (const Busy& one : busy)
        if (one.frame >= 0) next = std::min(next, one.end);
      if (std::isinf(next)) {
        for (int m = 0; m < q.models; ++m)
          for (int f : queue[m]) next = std::min(next, q.deadline[f] + 1);
        if (std::isinf(next)) break;
      }
      now = next;
    }
    return total();
  }

  double peak = 0;

 private:
  enum : char { hidden, waiting, running, done, lost };
  struct Busy { int model = -1, frame = -1; double end = 0; };

  void begin(const int64_t* processor, const double* rank) {
    now = 0, tick = 0, peak = 0, unseen = q.frames;
    state.assign(q.frames, hidden);
    queue.assign(q.models, {});
    busy.assign(q.processors, {});
    following.assign(q.first.begin(), q.first.end() - 1);
    completed.assign(q.models, 0), dropped.assign(q.models, 0);
    earned.assign(q.models, 0.0);
    resident.assign(q.models, 0);
    lists.assign(q.processors, {});
    at.assign(q.processors, 0);
    owner.resize(q.frames);
    for (int m = 0; m < q.models; ++m)
      for (int f = q.first[m]; f < q.first[m + 1]; ++f) {
        owner[f] = m;
        if (processor[f] >= 0) lists[processor[f]].push_back(f);
      }
    for (auto& list : lists)
      std::sort(list.begin(), list.end(), [&](int a, int b) {
        return rank[a] != rank[b] ? rank[a] < rank[b] : a < b;
      });
  }

  void see() {
    for (int m = 0; m < q.models; ++m)
      while (following[m] < q.first[m + 1] && q.release[following[m]] <= now) {
        int f = following[m]++;
        --unseen;
        if (q.wanted[f]) queue[m].push_back(f), state[f] = waiting;
        if (q.compatible) break;
      }
  }

  void retire() {
    double limit = q.compatible ? double(float(now + double(0.01f))) : now;
    for (int p = 0; p < q.processors; ++p) {
      Busy& one = busy[p];
      if (one.frame < 0 || limit < one.end) continue;
      double power = 15.0 * (one.end - q.deadline[one.frame]) / (q.compatible ? 1.0 : 1e6);
      double met = power > 700 ? 0.0 : 1.0 / (1.0 + std::exp(power));
      earned[one.model] += met * q.energy[p * q.models + one.model];
      ++completed[one.model];
      state[one.frame] = done;
      one.frame = -1;
    }
  }

  bool is_lost(int m, int f, const int64_t* processor) const {
    if (q.deadline[f] < now || processor[f] < 0) return true;
    if (q.compatible) return false;
    for (size_t k = 0; k < q.above[m].size(); ++k)
      if (state[q.first[q.above[m][k]] + q.needs[m][k][f - q.first[m]]] == lost) return true;
    return false;
  }

  void drop(const int64_t* processor) {
    for (bool changed = true; changed;) {
      changed = false;
      for (int m : q.names) {
        size_t kept = 0, size = queue[m].size();
        for (size_t k = 0; k < size; ++k) {
          int f = queue[m][k];
          if (is_lost(m, f, processor)) gone.push_back(f);
          else queue[m][kept++] = f;
        }
        queue[m].resize(kept);
        for (int f : gone) state[f] = lost, ++dropped[m], changed = true;
        gone.clear();
      }
    }
  }

  bool ready(int m, int f) const {
    for (size_t k = 0; k < q.above[m].size(); ++k) {
      int u = q.above[m][k];
      if (q.compatible) {
        if (completed[u] <= f - q.first[m]) return false;
      } else if (state[q.first[u] + q.needs[m][k][f - q.first[m]]] != done) {
        return false;
      }
    }
    return true;
  }

  double next_use(int m) const {
    if (!queue[m].empty()) return now;
    auto end = q.release.begin() + q.first[m + 1];
    auto found = std::upper_bound(q.release.begin() + q.first[m], end, now);
    return found == end ? std::numeric_limits<double>::infinity() : *found;
  }

  // Make room for a model; false where it has to wait.
  bool room(int m) {
    if (q.arena == 0) return true;
    double used = q.activations[m] + (resident[m] ? 0 : q.weights[m]);
    std::vector<int> idle;
    for (int o = 0; o < q.models; ++o) {
      bool runs = false;
      for (const Busy& one : busy)
        if (one.frame >= 0 && one.model == o) runs = true, used += q.activations[o];
      if (!resident[o]) continue;
      used += q.weights[o];
      if (!runs && o != m) idle.push_back(o);
    }
    std::sort(idle.begin(), idle.end(), [&](int a, int b) {
      double x = next_use(a), y = next_use(b);
      return x != y ? x > y : a < b;
    });
    size_t leaving = 0;
    while (used > q.arena && leaving < idle.size()) used -= q.weights[idle[leaving++]];
    if (used > q.arena) return false;
    for (size_t k = 0; k < leaving; ++k) resident[idle[k]] = 0;
    return true;
  }

  void dispatch(double* starts) {
    for (bool changed = true; changed;) {
      changed = false;
      for (int p = 0; p < q.processors; ++p) {
        if (busy[p].frame >= 0) continue;
        auto& list = lists[p];
        while (at[p] < list.size() && state[list[at[p]]] == lost) ++at[p];
        if (at[p] == list.size()) continue;
        int f = list[at[p]], m = owner[f];
        if (state[f] != waiting || !ready(m, f) || !room(m)) continue;
        double time = q.duration[p * q.models + m];
        if (q.arena != 0 && !resident[m]) time += q.page[m], resident[m] = 1;
        busy[p] = {m, f, q.compatible ? double(float(now + time)) : now + time};
        starts[f] = now;
        state[f] = running;
        queue[m].erase(std::find(queue[m].begin(), queue[m].end(), f));
        ++at[p];
        changed = true;
        note_peak();
        break;  // decisions begin again at the first processor, as in Python
      }
    }
  }

  void note_peak() {
    if (q.arena == 0) return;
    double used = 0;
    for (int m = 0; m < q.models; ++m)
      if (resident[m]) used += q.weights[m];
    for (const Busy& one : busy)
      if (one.frame >= 0) used += q.activations[one.model];
    peak = std::max(peak, used);
  }

  double total() const {
    double sum = 0;
    int counted = 0;
    for (int m = 0; m < q.models; ++m) {
      int all = completed[m] + dropped[m];
      if (all == 0) continue;
      ++counted;
      double share = q.compatible ? 1.0 - double(dropped[m]) / all : q.quality[m];
      sum += 100 * (earned[m] / all * share);
    }
    return counted ? sum / counted : 0.0;
  }

  const Question& q;
  double now = 0;
  size_t tick = 0;
  int unseen = 0;
  std::vector<char> state, resident;
  std::vector<std::vector<int>> queue, lists;
  std::vector<Busy> busy;
  std::vector<int> following, completed, dropped, owner, gone;
  std::vector<size_t> at;
  std::vector<double> earned;
};

}  // namespace streams
