// A CPU allocator for torch that counts every byte, keeps a hard limit and serves planned addresses.
//
// It is installed once per process through c10::SetCPUAllocator and never removed, since every tensor
// that it made holds its deleter. It always counts; a limit, a recording and a replay come and go.
//
//     address ^            arena, one mmap                 heap (c10's own), one block each
//             | +--A--+ +----C----+                        survivors of the step, other threads,
//             | +--+--B-----+  +-D-+                       everything after a divergence
//             +----+--------+--+---+-> allocation event
//
// Charged bytes are what the limit holds: heap blocks rounded up to 64, plus each arena by its state:
//     leased    in full                     the only state in which blocks are placed in it
//     idle      in full, until another allocation would break the limit: then free pages go back to the
//               system, the last ones first, as many as that allocation needs
//     retired   only the pages that hold live blocks; unmapped with the last of them
//
// Threads: allocate and the deleter may be called from any thread at any time. The tr_* functions may
// be called from any thread too; tr_begin_record and tr_begin_replay make the calling thread the
// owner, and only the owner's allocations are recorded or placed (frees count from any thread). At
// most one recording and one replay are active in a process; they may overlap. One mutex guards all
// state, and no call to torch that could allocate happens under it. A forked child starts without a
// limit, a recording or a replay: its memory is its own.

#include "allocator_state.hpp"
#include "evicting.hpp"
#include "hidden.hpp"

#include <string>

using namespace tightrope_allocator;

namespace {

constexpr uint8_t kPriority = 1;  // torch's own allocator has 0

State* state = nullptr;  // lives as long as the process: tensors may die after static destructors

}  // namespace

#include "allocator_calls.hpp"

namespace {

void deallocate(void* pointer) {
  if (pointer == nullptr) return;
  State::Owner owner;
  {
    Lock lock(state->mutex);
    if (state->evicting != nullptr && state->evicting->holds(pointer)) {
      c10::profiledCPUMemoryReporter().Delete(pointer);
      state->evicting->free(pointer);
      return;
    }
    owner = state->free(pointer);
  }
  if (owner == State::Owner::heap) {
    c10::profiledCPUMemoryReporter().Delete(pointer);
    c10::free_cpu(pointer);
  } else if (owner == State::Owner::other) {
    state->previous_deleter(pointer);  // raw memory from before the installation
  }
}

std::string nothing_to_evict(Bytes asked) {
  Lock lock(state->mutex);
  const auto now = state->evicting->arena().statistics();
  Bytes stays = 0;
  for (size_t k = 1; k < state->evicting->walls.size(); k += 3) stays += state->evicting->walls[k];
  const std::string used = now.used_bytes == 0
                               ? "nothing of the budget is in use"
                               : "of the budget " + std::to_string(now.used_bytes) + " bytes are in use, of which " +
                                     std::to_string(stays) + " must stay now";
  return "tightrope: evict was asked for " + std::to_string(asked) + " bytes; " + used +
         ", and the largest hole is " + std::to_string(now.largest_free) + " bytes.";
}

struct Hook final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &deallocate, cpu};
    TORCH_CHECK(bytes <= static_cast<size_t>(kLargest), "tightrope: cannot allocate ", bytes, " bytes");
    void* pointer = nullptr;
    while (pointer == nullptr) {
      try {
        Lock lock(state->mutex);
        if (state->evicting != nullptr && state->evicting->serves()) {
          state->grow_evicting(static_cast<Bytes>(bytes));
          pointer = state->evicting->allocate(static_cast<Bytes>(bytes));
          if (pointer == nullptr) {
            state->grow_evicting(static_cast<Bytes>(bytes), true);
            pointer = state->evicting->allocate(static_cast<Bytes>(bytes));
          }
          if (pointer == nullptr) break;
        } else {
          pointer = state->allocate(static_cast<Bytes>(bytes));
        }
      } catch (const Refused& refused) {
        if (relieved(refused)) continue;
        c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
        TORCH_CHECK_WITH(OutOfMemoryError, false, refusal(static_cast<Bytes>(bytes), refused));
      }
    }
    if (pointer == nullptr) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, false, nothing_to_evict(static_cast<Bytes>(bytes)));
    }
    c10::profiledCPUMemoryReporter().New(pointer, bytes);
    return {pointer, pointer, &deallocate, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};

void forget_in_child() {
  state->limit = -1;
  state->relief = nullptr;
  state->recording = false;
  state->replay.reset();
  if (state->evicting != nullptr) state->evicting->suspended = true;
  tightrope_hidden::after_fork(true);
  state->mutex.unlock();
}

void lock_for_fork() {
  state->mutex.lock();
  tightrope_hidden::before_fork();
}

void go_on_in_parent() {
  tightrope_hidden::after_fork(false);
  state->mutex.unlock();
}

}  // namespace

extern "C" {

int64_t tr_install() {
  if (state != nullptr) return 0;
  c10::Allocator* previous = c10::GetCPUAllocator();
  if (previous->raw_deleter() == nullptr) return fail("the CPU allocator in place has no raw deleter");
  auto* made = new State;
  made->previous_deleter = previous->raw_deleter();
  state = made;
  auto* hook = new Hook;
  c10::SetCPUAllocator(hook, kPriority);
  if (c10::GetCPUAllocator() != hook) {
    state = nullptr;
    return fail("another CPU allocator with a higher priority is in place");
  }
  pthread_atfork(lock_for_fork, go_on_in_parent, forget_in_child);
  return 0;
}

// Counts what kernels take elsewhere; 1 where that can be counted.
int64_t tr_attach_hidden() { return tightrope_hidden::attach() ? 1 : 0; }

void tr_begin_hidden() { tightrope_hidden::begin(); }

// Writes the most bytes that lived at once, and those that still live.
void tr_end_hidden(int64_t* out) {
  const auto [peak, left] = tightrope_hidden::end();
  out[0] = peak;
  out[1] = left;
}

int64_t tr_tidy(Bytes reserve) {
  tightrope_hidden::tidy(static_cast<size_t>(reserve));
  return 0;
}

}  // extern "C"

#include "evicting_calls.hpp"
#include "watch.hpp"
#include "watch_calls.hpp"
