// The arena of evict.hpp as plain C calls, for ctypes and for whoever includes this file.
#pragma once

#include <algorithm>

#include "evict.hpp"

// Inline, so that several files may include this; `used`, so that a library exports what it does not call.
#define TIGHTROPE_EVICT_CALL __attribute__((used, visibility("default"))) inline

extern "C" {

using tightrope_evict::Arena;
using tightrope_evict::Decision;
using tightrope_evict::Id;
using tightrope_evict::Options;
using tightrope_evict::Statistics;
using tightrope_evict::Victim;

TIGHTROPE_EVICT_CALL void* tightrope_evict_new(const Options* options) { return new Arena(*options); }
TIGHTROPE_EVICT_CALL void tightrope_evict_delete(Arena* arena) { delete arena; }
TIGHTROPE_EVICT_CALL void tightrope_evict_on_evicted(Arena* arena, Arena::Evicted callback, void* context) {
    arena->on_evicted(callback, context);
}
TIGHTROPE_EVICT_CALL void tightrope_evict_on_moved(Arena* arena, Arena::Moved callback, void* context) {
    arena->on_moved(callback, context);
}
TIGHTROPE_EVICT_CALL void tightrope_evict_set_options(Arena* arena, const Options* options) {
    arena->set_options(*options);
}
TIGHTROPE_EVICT_CALL void tightrope_evict_begin_op(
    Arena* arena, int64_t cost, int64_t bytes, int64_t largest, int64_t flags) {
    arena->begin_op(cost, bytes, largest, flags);
}
TIGHTROPE_EVICT_CALL Id tightrope_evict_place(Arena* arena, int64_t bytes) { return arena->place(bytes); }
TIGHTROPE_EVICT_CALL Id tightrope_evict_outside(Arena* arena, int64_t bytes) { return arena->outside(bytes); }
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_offset(Arena* arena, Id id) { return arena->offset(id); }
TIGHTROPE_EVICT_CALL void tightrope_evict_produced(Arena* arena, Id id, int64_t cost, const Id* parents, int64_t count) {
    arena->produced(id, cost, parents, count);
}
TIGHTROPE_EVICT_CALL void tightrope_evict_settle(Arena* arena, Id id) { arena->settle(id); }
TIGHTROPE_EVICT_CALL void tightrope_evict_root(Arena* arena, Id id) { arena->root(id); }
TIGHTROPE_EVICT_CALL void tightrope_evict_pin(Arena* arena, Id id) { arena->pin(id); }
TIGHTROPE_EVICT_CALL void tightrope_evict_unpin(Arena* arena, Id id) { arena->unpin(id); }
TIGHTROPE_EVICT_CALL void tightrope_evict_touch(Arena* arena, Id id) { arena->touch(id); }
TIGHTROPE_EVICT_CALL void tightrope_evict_advance(Arena* arena, int64_t ns, int64_t again) { arena->advance(ns, again != 0); }
TIGHTROPE_EVICT_CALL void tightrope_evict_forecast(Arena* arena, Id id, int64_t next_use) { arena->forecast(id, next_use); }
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_release(Arena* arena, Id id) { return arena->release(id) ? 1 : 0; }
TIGHTROPE_EVICT_CALL void tightrope_evict_evict(Arena* arena, Id id) { arena->evict(id); }
TIGHTROPE_EVICT_CALL void tightrope_evict_evict_idle(Arena* arena, Id id) { arena->evict_idle(id); }
TIGHTROPE_EVICT_CALL void tightrope_evict_keep(Arena* arena, Id id) { arena->keep(id); }
TIGHTROPE_EVICT_CALL void tightrope_evict_restored(Arena* arena, Id id, Id from) { arena->restored(id, from); }
TIGHTROPE_EVICT_CALL Id tightrope_evict_mutated(Arena* arena, Id id, int64_t cost, const Id* parents, int64_t count) {
    return arena->mutated(id, cost, parents, count);
}
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_at_risk(Arena* arena, Id id, Id* out, int64_t capacity) {
    return arena->at_risk(id, out, capacity);
}
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_take_forgotten(Arena* arena, Id* out, int64_t capacity) {
    return arena->take_forgotten(out, capacity);
}
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_resident(Arena* arena, Id id) { return arena->resident(id) ? 1 : 0; }
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_valid(Arena* arena, Id id) { return arena->valid(id) ? 1 : 0; }
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_recomputable(Arena* arena, Id id) { return arena->record(id).recomputable ? 1 : 0; }
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_cost_around(Arena* arena, Id id) { return arena->cost_around(id); }
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_now(Arena* arena) { return arena->now(); }
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_base(Arena* arena) { return arena->base(); }
TIGHTROPE_EVICT_CALL void tightrope_evict_statistics(Arena* arena, Statistics* out) { *out = arena->statistics(); }

// Victims of searches since the last call, where no callback is set.
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_take_victims(Arena* arena, Id* out, int64_t capacity) {
    const auto& victims = arena->last_victims();
    const int64_t count = std::min<int64_t>(capacity, static_cast<int64_t>(victims.size()));
    std::copy_n(victims.begin(), count, out);
    arena->clear_last_victims();
    return count;
}

// Rows of (offset, bytes, owner or -1, wall, pins of the owner) in address order.
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_pieces(Arena* arena, int64_t small, int64_t* out, int64_t capacity) {
    const auto& pieces = arena->pieces(small != 0);
    int64_t count = 0;
    for (auto at = pieces.first(); at != tightrope_evict::kNone; at = pieces.at(at).after, ++count) {
        if (count >= capacity) continue;
        const auto& piece = pieces.at(at);
        const bool used = piece.owner != tightrope_evict::kNone;
        const int64_t row[5] = {piece.offset, piece.bytes, piece.owner, piece.wall ? 1 : 0,
                                used ? arena->record(piece.owner).pins : 0};
        std::copy_n(row, 5, out + 5 * count);
    }
    return count;
}

TIGHTROPE_EVICT_CALL int64_t tightrope_evict_decisions(Arena* arena, Decision* out, int64_t capacity) {
    const auto& all = arena->decisions();
    std::copy_n(all.begin(), std::min<int64_t>(capacity, static_cast<int64_t>(all.size())), out);
    return static_cast<int64_t>(all.size());
}
TIGHTROPE_EVICT_CALL int64_t tightrope_evict_victims(Arena* arena, Victim* out, int64_t capacity) {
    const auto& all = arena->victims();
    std::copy_n(all.begin(), std::min<int64_t>(capacity, static_cast<int64_t>(all.size())), out);
    return static_cast<int64_t>(all.size());
}
TIGHTROPE_EVICT_CALL void tightrope_evict_clear_decisions(Arena* arena) { arena->clear_decisions(); }

}  // extern "C"
