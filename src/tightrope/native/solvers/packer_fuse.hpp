// Fused buffers: fewer and larger ones, whose placements are placements of the buffers inside them.
//
//   address ^
//           |  +---2---+             0 and 2 live and die together: one buffer of both sizes
//           |  +---0---+--1--+       0+2 and 1 have one size, and 1 is born when 0+2 dies: one buffer
//           +--+-------+-----+-->    with both lives, if by then 2 has been fused with 0
//
// Idea        Buffers that were cut from one, or that take turns in one place, look like this, and nearly
//             every placement problem has many. Which of them are fused is drawn at random.
// Source      our own
// Guarantee   A placement of the fused buffers is one of the buffers themselves.
// Complexity  O(n log n) a round, at most 20 rounds.
// Gaps        When the fused buffers have no placement, nothing follows. Buffers that are not alike in this
//             sense are searched one by one; shortened lives hide what belongs together.
#pragma once

#include <map>

#include "packer_model.hpp"

namespace packer {

struct Fused {
    Part part;
    std::vector<std::vector<std::pair<Index, Offset>>> members;  // buffers inside, with their distance from the bottom

    std::vector<Offset> offsets_inside(const std::vector<Offset>& offset, Index count) const {
        std::vector<Offset> inside(count, 0);
        for (std::size_t at = 0; at < members.size(); ++at)
            for (const auto& [j, low] : members[at]) inside[j] = offset[at] + low;
        return inside;
    }
};

class Fuser {
   public:
    // Fuse a pair that qualifies with probability `share`.
    Fuser(const Part& part, double share, Random& random) : share_(share), random_(random) {
        for (Index j = 0; j < part.count(); ++j)
            pieces_.push_back({part.start[j], part.end[j], part.size[j], part.width[j], {{j, 0}}});
    }

    // Fuse equal lives and, if asked, lives that follow each other, until nothing more qualifies.
    Fused run(bool one_after_another) {
        for (int round = 0; round < kRounds; ++round) {
            const bool stacked = stack(), joined = one_after_another && join();
            if (!stacked && !joined) break;
        }
        Fused fused;
        Part& part = fused.part;
        for (Piece& piece : pieces_) {
            part.size.push_back(piece.size), part.align.push_back(1), part.fixed.push_back(-1);
            part.start.push_back(piece.start), part.end.push_back(piece.end), part.width.push_back(piece.width);
            part.id.push_back(part.count() - 1), part.num_sections = std::max(part.num_sections, piece.end);
            fused.members.push_back(std::move(piece.members));
        }
        const auto loads = part.loads();
        part.load = *std::max_element(loads.begin(), loads.end());
        return fused;
    }

   private:
    struct Piece {
        Section start, end;
        Bytes size;
        i64 width;
        std::vector<std::pair<Index, Offset>> members;
    };
    static constexpr int kRounds = 20;

    void shuffle(std::vector<Index>& list) {
        for (std::size_t at = list.size(); at > 1; --at) std::swap(list[at - 1], list[random_.below(at)]);
    }

    // Put pieces of equal lives on top of each other.
    bool stack() {
        std::map<std::pair<Section, Section>, std::vector<Index>> alike;
        for (Index at = 0; at < std::ssize(pieces_); ++at) alike[{pieces_[at].start, pieces_[at].end}].push_back(at);
        std::vector<Piece> stacked;
        for (auto& [life, group] : alike) {
            shuffle(group);
            for (std::size_t at = 0; at < group.size(); ++at) {
                if (at == 0 || random_.unit() >= share_) {
                    stacked.push_back(std::move(pieces_[group[at]]));
                    continue;
                }
                Piece &below = stacked.back(), &above = pieces_[group[at]];
                for (const auto& [j, low] : above.members) below.members.emplace_back(j, below.size + low);
                below.size += above.size;
            }
        }
        const bool changed = stacked.size() < pieces_.size();
        pieces_ = std::move(stacked);
        return changed;
    }

    // Let a piece go on as one of equal size that is born when it dies.
    bool join() {
        std::map<std::pair<Bytes, Section>, std::vector<Index>> born;
        std::vector<Index> order(pieces_.size());
        std::iota(order.begin(), order.end(), 0);
        for (Index at : order) born[{pieces_[at].size, pieces_[at].start}].push_back(at);
        shuffle(order);
        std::vector<char> gone(pieces_.size(), 0);
        for (Index at : order) {
            Piece& piece = pieces_[at];
            const auto found = gone[at] ? born.end() : born.find({piece.size, piece.end});
            if (found == born.end() || found->second.empty() || random_.unit() >= share_) continue;
            auto& heirs = found->second;
            std::swap(heirs[random_.below(heirs.size())], heirs.back());
            Piece& heir = pieces_[heirs.back()];
            gone[heirs.back()] = 1, heirs.pop_back();
            piece.members.insert(piece.members.end(), heir.members.begin(), heir.members.end());
            piece.end = heir.end, piece.width += heir.width;
        }
        const std::size_t before = pieces_.size();
        std::vector<Piece> left;
        for (std::size_t at = 0; at < before; ++at)
            if (!gone[at]) left.push_back(std::move(pieces_[at]));
        pieces_ = std::move(left);
        return pieces_.size() < before;
    }

    std::vector<Piece> pieces_;
    double share_;
    Random& random_;
};

}  // namespace packer
