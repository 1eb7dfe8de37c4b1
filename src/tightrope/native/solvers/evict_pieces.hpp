// Pieces of addresses: they tile one range exactly, and no two neighbours are both free.
//
//     offset  0        a        b        c           end
//             |  used  |  free  |  used  |   free    |
//     before  <------- doubly linked in address order ------> after
#pragma once

#include <cstdint>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

namespace tightrope_evict {

using Bytes = std::int64_t;
using Clock = std::int64_t;  // ns of operator time since the arena was made
using Cost = std::int64_t;   // ns
using Id = std::int32_t;     // of a storage

constexpr Bytes kAlignment = 64;  // of torch's CPU allocator
constexpr std::int32_t kNone = -1;
constexpr std::int32_t kReserved = -2;  // owner of a hole that is kept for a moment

inline Bytes round_up(Bytes bytes) {
    return bytes < 1 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct Piece {
    Bytes offset = 0, bytes = 0;
    std::int32_t before = kNone, after = kNone;
    Id owner = kNone;   // kNone: free
    bool wall = false;  // its storage must not be evicted now
    bool fixed = false;  // and must not move either while an op runs
    bool rooted = false;  // and never
    bool unheld = false;  // nobody holds its storage: it is there for what is made from it
    bool stale = true;  // `cost` must be derived again
    Cost cost = 0;      // of its storage and what is evicted around it
    Clock touched = 0;
    Clock next_use = -1;  // forecast; -1: none
};

class Pieces {
  public:
    Pieces(Bytes begin, Bytes bytes) {
        if (bytes <= 0) return;
        first_ = last_ = make(begin, bytes);
        free_.insert({begin, first_});
        free_bytes_ = bytes;
    }

    std::int32_t first() const { return first_; }
    const Piece& at(std::int32_t piece) const { return pieces_[piece]; }
    Piece& at(std::int32_t piece) { return pieces_[piece]; }
    Bytes free_bytes() const { return free_bytes_; }
    std::int64_t count() const { return count_; }
    std::int64_t free_count() const { return static_cast<std::int64_t>(free_.size()); }

    // The first free piece that fits, from the left or from the right end.
    std::int32_t fit(Bytes need, bool right) const {
        if (need > free_bytes_) return kNone;
        if (right) {
            for (auto i = free_.rbegin(); i != free_.rend(); ++i)
                if (pieces_[i->second].bytes >= need) return i->second;
        } else {
            for (const auto& [offset, piece] : free_)
                if (pieces_[piece].bytes >= need) return piece;
        }
        return kNone;
    }

    // The smallest free piece that fits; of equal ones the first from that end.
    std::int32_t best_fit(Bytes need, bool right) const {
        std::int32_t best = kNone;
        for (const auto& [offset, piece] : free_) {
            const Bytes bytes = pieces_[piece].bytes;
            if (bytes < need) continue;
            if (best == kNone || bytes < pieces_[best].bytes || (right && bytes == pieces_[best].bytes))
                best = piece;
        }
        return best;
    }

    // Uses one end of a free piece; the rest stays free.
    std::int32_t take(std::int32_t piece, Bytes need, Id owner, bool right) {
        free_.erase({pieces_[piece].offset, piece});
        const Bytes rest = pieces_[piece].bytes - need;
        if (rest > 0) {
            const std::int32_t other = make(0, 0);
            Piece& whole = pieces_[piece];
            Piece& left = pieces_[other];  // inserted in front of the piece
            left.offset = whole.offset;
            left.bytes = right ? rest : need;
            whole.offset += left.bytes;
            whole.bytes -= left.bytes;
            left.before = whole.before;
            left.after = piece;
            (left.before == kNone ? first_ : pieces_[left.before].after) = other;
            whole.before = other;
            const std::int32_t used = right ? piece : other, free = right ? other : piece;
            free_.insert({pieces_[free].offset, free});
            piece = used;
        }
        free_bytes_ -= need;
        pieces_[piece].owner = owner;
        return piece;
    }

    // Frees a piece and merges it with free neighbours; returns the free piece.
    std::int32_t give(std::int32_t piece) {
        free_bytes_ += pieces_[piece].bytes;
        Piece& freed = pieces_[piece];
        freed.owner = kNone;
        freed.wall = freed.fixed = freed.rooted = freed.unheld = false;
        if (is_free(freed.after)) absorb(piece, freed.after);
        if (is_free(freed.before)) {
            const std::int32_t left = freed.before;
            free_.erase({pieces_[left].offset, left});
            absorb_links(left, piece);
            piece = left;
        }
        free_.insert({pieces_[piece].offset, piece});
        return piece;
    }

    // The used piece behind a free one moves in front of it; returns the free piece, merged with what follows.
    std::int32_t slide(std::int32_t hole) {
        const std::int32_t used = pieces_[hole].after;
        free_.erase({pieces_[hole].offset, hole});
        Piece &gap = pieces_[hole], &moved = pieces_[used];
        moved.offset = gap.offset;
        gap.offset += moved.bytes;
        const std::int32_t before = gap.before, after = moved.after;
        (before == kNone ? first_ : pieces_[before].after) = used;
        moved.before = before, moved.after = hole;
        gap.before = used, gap.after = after;
        (after == kNone ? last_ : pieces_[after].before) = hole;
        if (is_free(after)) absorb(hole, after);
        free_.insert({pieces_[hole].offset, hole});
        return hole;
    }

    // The bytes that are free behind the last used piece.
    Bytes free_at_end() const { return is_free(last_) ? pieces_[last_].bytes : 0; }

    // Appends free addresses at the end.
    void extend(Bytes bytes) {
        free_bytes_ += bytes;
        if (is_free(last_)) {
            pieces_[last_].bytes += bytes;
            return;
        }
        const Bytes end = last_ == kNone ? 0 : pieces_[last_].offset + pieces_[last_].bytes;
        const std::int32_t made = make(end, bytes);
        pieces_[made].before = last_;
        (last_ == kNone ? first_ : pieces_[last_].after) = made;
        last_ = made;
        free_.insert({end, made});
    }

    // The free piece that holds this address.
    std::int32_t free_at(Bytes offset) const {
        return std::prev(free_.upper_bound({offset, INT32_MAX}))->second;
    }

    bool is_free(std::int32_t piece) const { return piece != kNone && pieces_[piece].owner == kNone; }

    Bytes largest_free() const {
        Bytes largest = 0;
        for (const auto& [offset, piece] : free_)
            if (pieces_[piece].bytes > largest) largest = pieces_[piece].bytes;
        return largest;
    }

  private:
    std::int32_t make(Bytes offset, Bytes bytes) {
        ++count_;
        std::int32_t index;
        if (spare_.empty()) {
            index = static_cast<std::int32_t>(pieces_.size());
            pieces_.emplace_back();
        } else {
            index = spare_.back();
            spare_.pop_back();
            pieces_[index] = Piece{};
        }
        pieces_[index].offset = offset;
        pieces_[index].bytes = bytes;
        return index;
    }

    void absorb(std::int32_t piece, std::int32_t right) {
        free_.erase({pieces_[right].offset, right});
        absorb_links(piece, right);
    }

    void absorb_links(std::int32_t piece, std::int32_t right) {
        pieces_[piece].bytes += pieces_[right].bytes;
        pieces_[piece].after = pieces_[right].after;
        (pieces_[right].after == kNone ? last_ : pieces_[pieces_[right].after].before) = piece;
        spare_.push_back(right);
        --count_;
    }

    std::vector<Piece> pieces_;
    std::vector<std::int32_t> spare_;
    std::set<std::pair<Bytes, std::int32_t>> free_;  // by address
    std::int32_t first_ = kNone, last_ = kNone;
    Bytes free_bytes_ = 0;
    std::int64_t count_ = 0;
};

}  // namespace tightrope_evict
