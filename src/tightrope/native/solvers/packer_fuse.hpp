// Fused buffers: fewer and larger ones, whose placements are placements of the buffers inside them.
//
//   address ^
//           |  +---2---+             stack: 0 and 2 live and die together: one piece of both sizes
//           |  +---0---+--1--+       join:  0+2 and 1 have one size, and 1 is born when 0+2 dies: one
//           +--+-------+-----+-->           piece with both lives, if by then 2 has been fused with 0
//
//           |  +---+------y-----+    wheel: five pieces turn around the middle one, l = m + y bytes and
//           |  |   +--m---+     |           r = x + m bytes; together they are one piece
//           |  | l |------+  r  |
//           |  +---x------+-----+
//
// Idea        Buffers that were cut from one, or that take turns in one place, look like this, and nearly
//             every placement problem has many. Coincidences that are hardly accidental come first: wheels,
//             then joins by how many others could have met by chance. Who meets whom is read off the instants
//             of the caller, of which sections keep only some, or off sections, where few instants are shared.
//             Bytes to spare may become pieces of their own (`pad`), so that what lies around them fuses too;
//             those that fuse with nothing are dropped again.
// Source      Rectangles cut by lines and wheels are the hierarchical floorplans of order five (Wang and Wong,
//             1990); the rest is our own.
// Guarantee   A placement of the fused buffers is one of the buffers themselves.
// Complexity  O(n log n) a round where few buffers are alike, at most 100 rounds.
// Gaps        When the fused buffers have no placement, nothing follows. Buffers that are not alike in this
//             sense are searched one by one; shortened lives hide what belongs together.
#pragma once

#include <span>

#include "packer_sections.hpp"

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

// Lives of buffers in ticks: sections, or the instants at which some buffer begins or ends.
struct Lives {
    std::vector<Section> start, end;
    std::vector<i64> time;  // of every tick

    static Lives in_sections(const Part& part) { return {part.start, part.end, part.times()}; }
    static Lives in_instants(const Part& part) {
        Lives lives;
        lives.time = part.born;
        lives.time.insert(lives.time.end(), part.died.begin(), part.died.end());
        std::sort(lives.time.begin(), lives.time.end());
        lives.time.erase(std::unique(lives.time.begin(), lives.time.end()), lives.time.end());
        const auto tick = [&](i64 now) {
            return static_cast<Section>(std::lower_bound(lives.time.begin(), lives.time.end(), now) - lives.time.begin());
        };
        for (i64 now : part.born) lives.start.push_back(tick(now));
        for (i64 now : part.died) lives.end.push_back(tick(now));
        return lives;
    }
    // Share of the lives that begin where another one ends.
    double meeting() const {
        std::vector<char> ended(time.size(), 0);
        for (Section tick : end) ended[tick] = 1;
        const auto meet = std::count_if(start.begin(), start.end(), [&](Section tick) { return ended[tick]; });
        return static_cast<double>(meet) / static_cast<double>(start.size());
    }
    Section num_ticks() const { return static_cast<Section>(time.size()) - 1; }
};

class Fuser {
   public:
    // Keep a piece as it is with probability `apart`: no coincidence is certain.
    Fuser(const Part& part, const Lives& lives, double apart, Random& random)
        : part_(part), lives_(lives), apart_(apart), random_(random) {
        for (Index j = 0; j < part.count(); ++j)
            add({lives.start[j], lives.end[j], part.size[j], part.born[j], part.died[j], {{j, 0}}});
    }

    // Add pieces of nothing until every tick carries the largest load. A step of the load up and a later one
    // down by as much are taken for the ends of one piece.
    void pad() {
        std::vector<Bytes> spare_after(lives_.num_ticks() + 1, 0);
        for (Index j = 0; j < part_.count(); ++j)
            spare_after[lives_.start[j]] -= part_.size[j], spare_after[lives_.end[j]] += part_.size[j];
        spare_after[0] += part_.load;
        std::partial_sum(spare_after.begin(), spare_after.end(), spare_after.begin());
        spare_after.back() = 0;
        std::vector<Piece> open;
        Bytes spare = 0;
        for (Section tick = 0; tick <= lives_.num_ticks(); ++tick) {
            const Bytes now = spare_after[tick];
            if (now > spare) open.push_back({tick, tick, now - spare, lives_.time[tick], 0, {}});
            for (Bytes less = spare - now; less > 0;) {
                std::size_t at = random_.below(open.size());
                for (std::size_t other = 0; other < open.size(); ++other)
                    if (open[other].size == less) at = other;
                Piece ended = open[at];
                ended.size = std::min(less, ended.size), ended.end = tick, ended.died = lives_.time[tick];
                open[at].size -= ended.size, less -= ended.size;
                if (open[at].size == 0) std::swap(open[at], open.back()), open.pop_back();
                add(std::move(ended));
            }
            spare = now;
        }
    }

    // Stack and, if asked, turn wheels and join, until nothing more qualifies. `doubt` = number of accidental
    // joins up to which one is accepted, 0 = none is.
    Fused run(bool wheels, double doubt) {
        double level = std::min(doubt, kFirstDoubt);
        for (int round = 0; round < kRounds; ++round) {
            if ((wheels && wheel()) || join(level) || stack()) continue;
            if (level >= doubt) break;
            level = std::min(doubt, 4 * level);
        }
        return finish();
    }

   private:
    struct Piece {
        Section start, end;  // in ticks
        Bytes size;
        i64 born, died;  // in the caller's time
        std::vector<std::pair<Index, Offset>> members;
        bool apart = false;
    };

    // Bytes to spare that belong to no piece are left out: nobody knows where they lie.
    Fused finish() {
        std::erase_if(pieces_, [](const Piece& piece) { return piece.members.empty(); });
        std::vector<Event> events;
        for (Index at = 0; const Piece& piece : pieces_)
            events.push_back({piece.start, true, at}), events.push_back({piece.end, false, at++});
        sort_events(events);
        Sections sections(pieces_.size(), events, true);
        Fused fused;
        Part& part = fused.part;
        part.start = std::move(sections.first), part.end = std::move(sections.last);
        for (Piece& piece : pieces_) {
            part.size.push_back(piece.size), part.align.push_back(1), part.fixed.push_back(-1);
            part.born.push_back(piece.born), part.died.push_back(piece.died), part.id.push_back(part.count() - 1);
            fused.members.push_back(std::move(piece.members));
        }
        part.num_sections = *std::max_element(part.end.begin(), part.end.end());
        const auto loads = part.loads();
        part.load = *std::max_element(loads.begin(), loads.end());
        return fused;
    }

    // Pieces by a key of two values.
    class Table {
       public:
        using Entry = std::pair<std::pair<i64, i64>, Index>;

        template <class Key>
        Table(const std::vector<Piece>& pieces, Key&& key) {
            for (std::size_t at = 0; at < pieces.size(); ++at)
                if (!pieces[at].apart) entries_.push_back({key(pieces[at]), static_cast<Index>(at)});
            std::sort(entries_.begin(), entries_.end());
        }
        std::span<const Entry> all() const { return entries_; }
        std::span<const Entry> of(i64 first, i64 second) const { return between({first, second}, {first, second + 1}); }
        std::span<const Entry> of(i64 first) const { return between({first, 0}, {first + 1, 0}); }

       private:
        std::span<const Entry> between(std::pair<i64, i64> from, std::pair<i64, i64> to) const {
            const auto before = [](const Entry& entry, const std::pair<i64, i64>& key) { return entry.first < key; };
            const auto first = std::lower_bound(entries_.begin(), entries_.end(), from, before);
            return {first, std::lower_bound(first, entries_.end(), to, before)};
        }
        std::vector<Entry> entries_;
    };

    static constexpr int kRounds = 100;
    static constexpr double kFirstDoubt = 0.02;

    void add(Piece piece) {
        pieces_.push_back(std::move(piece));
        grown(pieces_.back());
    }
    void grown(Piece& piece) { piece.apart = random_.unit() < apart_; }

    Table by_life() const {
        return {pieces_, [](const Piece& piece) { return std::pair<i64, i64>{piece.start, piece.end}; }};
    }
    Table by_size() const {
        return {pieces_, [](const Piece& piece) { return std::pair<i64, i64>{piece.size, piece.start}; }};
    }
    Table by_end() const {
        return {pieces_, [](const Piece& piece) { return std::pair<i64, i64>{piece.end, piece.start}; }};
    }

    template <class List>
    void shuffle(List& list) {
        for (std::size_t at = list.size(); at > 1; --at) std::swap(list[at - 1], list[random_.below(at)]);
    }

    std::vector<Index> shuffled() {
        std::vector<Index> order(pieces_.size());
        std::iota(order.begin(), order.end(), 0);
        shuffle(order);
        return order;
    }

    // Remove the pieces that went into others; false when there are none.
    bool drop(const std::vector<char>& gone) {
        std::vector<Piece> left;
        for (std::size_t at = 0; at < gone.size(); ++at)
            if (!gone[at]) left.push_back(std::move(pieces_[at]));
        pieces_ = std::move(left);
        return pieces_.size() < gone.size();
    }

    // Put pieces of equal lives on top of each other.
    bool stack() {
        std::vector<char> gone(pieces_.size(), 0);
        const Table lives = by_life();
        std::vector<Index> group;
        for (auto rest = lives.all(); !rest.empty();) {
            group.clear();
            const auto [start, end] = rest.front().first;
            for (const auto& [life, at] : lives.of(start, end)) group.push_back(at);
            rest = rest.subspan(group.size());
            shuffle(group);
            if (group.size() == 1) continue;
            Piece& below = pieces_[group[0]];
            for (std::size_t at = 1; at < group.size(); ++at) {
                const Piece& above = pieces_[group[at]];
                for (const auto& [j, low] : above.members) below.members.emplace_back(j, below.size + low);
                below.size += above.size, gone[group[at]] = 1;
            }
            grown(below);
        }
        return drop(gone);
    }

    // Let a piece go on as one of equal size that is born when it dies, if not too many others could have met
    // there by chance.
    bool join(double doubt) {
        std::vector<double> born(lives_.num_ticks() + 1, 0), died(born);
        for (const Piece& piece : pieces_) ++born[piece.start], ++died[piece.end];
        const Table sizes = by_size();
        const double most = doubt * static_cast<double>(pieces_.size());
        std::vector<char> gone(pieces_.size(), 0);
        std::vector<Index> heirs;
        for (Index at : shuffled()) {
            Piece& piece = pieces_[at];
            if (gone[at] || piece.apart || died[piece.end] * born[piece.end] > most) continue;
            heirs.clear();
            for (const auto& [key, heir] : sizes.of(piece.size, piece.end))
                if (!gone[heir]) heirs.push_back(heir);
            const double alike = static_cast<double>(sizes.of(piece.size).size());
            if (heirs.empty() || died[piece.end] * born[piece.end] * alike > most) continue;
            const Index next = heirs[random_.below(heirs.size())];
            Piece& heir = pieces_[next];
            gone[next] = 1;
            piece.members.insert(piece.members.end(), heir.members.begin(), heir.members.end());
            piece.end = heir.end, piece.died = heir.died, grown(piece);
        }
        return drop(gone);
    }

    bool wheel() {
        const Table lives = by_life(), sizes = by_size(), ends = by_end();
        // A wheel has other ends than its middle had, by which the tables know it.
        std::vector<char> gone(pieces_.size(), 0), used(gone);
        const auto turned = [&](Index m, Index x) {
            const Piece &middle = pieces_[m], &low = pieces_[x];
            for (const auto& [left_key, l] : lives.of(low.start, middle.start)) {
                if (used[l] || pieces_[l].size <= middle.size) continue;
                for (const auto& [top_key, y] : sizes.of(pieces_[l].size - middle.size, middle.start)) {
                    if (used[y] || y == m || pieces_[y].end <= middle.end) continue;
                    for (const auto& [right_key, r] : lives.of(middle.end, pieces_[y].end)) {
                        if (used[r] || pieces_[r].size != low.size + middle.size) continue;
                        turn(m, x, y, l, r);
                        for (Index at : {x, y, l, r}) gone[at] = used[at] = 1;
                        used[m] = 1;
                        return true;
                    }
                }
            }
            return false;
        };
        for (Index m : shuffled()) {
            if (used[m] || pieces_[m].apart) continue;
            for (const auto& [key, x] : ends.of(pieces_[m].end))
                if (key.second >= pieces_[m].start || (!used[x] && turned(m, x))) break;
        }
        return drop(gone);
    }

    // Make the middle of a wheel all of it.
    void turn(Index m, Index x, Index y, Index l, Index r) {
        const Bytes low = pieces_[x].size, high = low + pieces_[m].size;
        Piece all{pieces_[x].start, pieces_[y].end, high + pieces_[y].size, pieces_[x].born, pieces_[y].died, {}};
        for (const auto& [at, bottom] : {std::pair{m, low}, {x, Bytes{0}}, {y, high}, {l, low}, {r, Bytes{0}}})
            for (const auto& [j, offset] : pieces_[at].members) all.members.emplace_back(j, bottom + offset);
        pieces_[m] = std::move(all), grown(pieces_[m]);
    }

    const Part& part_;
    const Lives& lives_;
    std::vector<Piece> pieces_;
    double apart_;
    Random& random_;
};

}  // namespace packer
