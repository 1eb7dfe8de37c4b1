// Calls of tightrope.native.solvers.streams.
#include "streams.hpp"

namespace {

struct Holder {
  streams::Question question;
  streams::Simulation simulation{question};
};

std::vector<double> reals(const double*& from, int count) {
  std::vector<double> found(from, from + count);
  from += count;
  return found;
}

}  // namespace

extern "C" {

// shape: models, processors, compatible, ticks, arena; then by model its frames; models by name; by frame whether
// it is wanted; by model how many it waits for, and per one of them: which, and the frame of it per own frame.
// values: release, deadline, ticks, duration, energy, page, quality, weights, activations.
void* streams_new(const int64_t* shape, const double* values) {
  auto* made = new Holder;
  streams::Question& q = made->question;
  q.models = int(shape[0]), q.processors = int(shape[1]), q.compatible = shape[2] != 0;
  int ticks = int(shape[3]);
  q.arena = double(shape[4]);
  shape += 5;
  q.first.assign(1, 0);
  for (int m = 0; m < q.models; ++m) q.first.push_back(q.first.back() + int(*shape++));
  q.frames = q.first.back();
  for (int m = 0; m < q.models; ++m) q.names.push_back(int(*shape++));
  for (int f = 0; f < q.frames; ++f) q.wanted.push_back(char(*shape++));
  for (int m = 0; m < q.models; ++m) {
    q.above.emplace_back(), q.needs.emplace_back();
    for (int64_t left = *shape++; left > 0; --left) {
      q.above[m].push_back(int(*shape++));
      q.needs[m].emplace_back(shape, shape + q.count(m));
      shape += q.count(m);
    }
  }
  q.release = reals(values, q.frames);
  q.deadline = reals(values, q.frames);
  q.ticks = reals(values, ticks);
  q.duration = reals(values, q.processors * q.models);
  q.energy = reals(values, q.processors * q.models);
  q.page = reals(values, q.models);
  q.quality = reals(values, q.models);
  q.weights = reals(values, q.models);
  q.activations = reals(values, q.models);
  return made;
}

void streams_delete(void* handle) { delete static_cast<Holder*>(handle); }

int64_t streams_run(void*, int64_t) { return 0; }

// found: score, peak, then by frame when it started, or -1.
void streams_score(void* handle, const int64_t* processor, const double* rank, double* found) {
  auto* made = static_cast<Holder*>(handle);
  found[0] = made->simulation.score(processor, rank, found + 2);
  found[1] = made->simulation.peak;
}
}
