// An allocator for one CUDA device that counts, holds torch's own limit and serves planned addresses from slabs.
//
// It stands in front of torch's caching allocator, by the pointer that torch asks for memory, and is never removed.
// Whatever has no planned address comes from the caching allocator, as do the slabs themselves: statistics, limits
// and snapshots of torch stay right. See `cuda_state.hpp` for what is charged.
//
// Threads: as the allocator of the CPU (`allocator.cpp`). Torch runs backward passes on a thread of the device; the
// thread that begins a replay owns it. Calls into the caching allocator from `allocate` and the deleter happen
// outside the lock.
// Streams: planned addresses are handed out in the order of one stream, that of the slab; a request on another one
// is a divergence. A block that another stream uses besides (`record_stream`) makes the slab's stream wait for that
// one when it ends.
// Gaps: one device of a process; blocks in slabs cannot be shared with other processes by handles.

#include "cuda_state.hpp"

#include <torch/headeronly/version.h>

#include <exception>
#include <string>

using namespace tightrope_allocator;

namespace {

State* state = nullptr;  // lives as long as the process: tensors may die after static destructors

}  // namespace

#include "../hook/allocator_calls.hpp"

namespace {

using c10::DeviceIndex;
using c10::MempoolId_t;
namespace caching = c10::cuda::CUDACachingAllocator;
using namespace c10::cuda::CUDACachingAllocator;

void deallocate(void* pointer) {
  if (pointer == nullptr) return;
  {
    Lock lock(state->mutex);
    if (state->free(pointer)) return;
  }
  state->device->raw_delete(pointer);
}

// Asks the caching allocator; where it has nothing left, once more after idle slabs went, and after whoever may make
// room was asked.
void* from_heap(size_t bytes) {
  for (;;) {
    std::exception_ptr of_torch;
    try {
      return state->device->raw_alloc(bytes);
    } catch (const c10::OutOfMemoryError&) {
      of_torch = std::current_exception();
    }
    bool trimmed, limited;
    {
      Lock lock(state->mutex);
      trimmed = state->trim_idle();
      limited = state->limit >= 0;
    }
    if (trimmed) {
      state->device->emptyCache();  // or what follows is cut out of the slab
      continue;
    }
    if (!limited) std::rethrow_exception(of_torch);
    try {
      Lock lock(state->mutex);
      state->refuse(static_cast<Bytes>(bytes));
    } catch (const Refused& refused) {
      if (relieved(refused)) continue;
      TORCH_CHECK_WITH(OutOfMemoryError, false, refusal(static_cast<Bytes>(bytes), refused));
    }
  }
}

void* serve(size_t bytes) {
  {
    Lock lock(state->mutex);
    if (void* planned = state->planned(static_cast<Bytes>(bytes))) return planned;
  }
  void* pointer = from_heap(bytes);
  Lock lock(state->mutex);
  state->adopt(pointer, static_cast<Bytes>(bytes));
  return pointer;
}

struct Hook final : Device {
  Device* base;
  explicit Hook(Device* of) : base(of) {}

  bool mine() const { return c10::cuda::current_device() == state->index; }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0 || !mine()) return base->allocate(bytes);
    void* pointer = serve(bytes);
    return {pointer, pointer, &deallocate, c10::Device(c10::DeviceType::CUDA, state->index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deallocate; }
  void* raw_alloc(size_t bytes) override { return bytes == 0 || !mine() ? base->raw_alloc(bytes) : serve(bytes); }
  void raw_delete(void* pointer) override { deallocate(pointer); }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (data.get() == nullptr) return;
    if (data.get_deleter() != &deallocate) return base->recordStream(data, stream);
    {
      Lock lock(state->mutex);
      if (state->also_used(data.get(), stream.unwrap())) return;
    }
    // The caching allocator looks at the deleter to know its own blocks.
    c10::DataPtr own{data.get(), data.get(), base->raw_deleter(), data.device()};
    base->recordStream(own, stream);
    own.release_context();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    recordStream(data, c10::cuda::CUDAStream(stream));
  }

#include "cuda_delegates.hpp"
};

}  // namespace

extern "C" {

// Puts the hook in front of the allocator of device `index`, which torch must have initialized.
int64_t tr_install_on(int64_t index) {
  if (state != nullptr) return state->index == index ? 0 : fail("one device of a process can be planned for");
  Device* base = caching::get();
  if (!base->initialized()) return fail("torch has not initialized CUDA yet");
  if (base->name() != "native") return fail("torch allocates by " + base->name() + ", and not by its caching allocator");
  try {
    state = new State(base, static_cast<DeviceIndex>(index));
  } catch (const std::exception& failed) {
    return fail(failed.what());
  }
  caching::allocator.store(new Hook(base));
  return 0;
}

int64_t tr_install() { return 0; }

int64_t tr_attach_hidden() { return 0; }

void tr_begin_hidden() {}

void tr_end_hidden(int64_t* out) { out[0] = out[1] = 0; }

int64_t tr_tidy(Bytes) {
  return guarded([] { return state->device->emptyCache(), int64_t{0}; });
}

}  // extern "C"
