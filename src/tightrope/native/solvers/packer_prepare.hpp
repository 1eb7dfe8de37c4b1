// From the caller's buffers to independent parts: one granule, sections, zero cuts, lifelong buffers.
#pragma once

#include <tuple>

#include "packer_sections.hpp"

namespace packer {

struct Input {
    i64 count;
    const i64 *size, *start, *end, *align, *fixed;
};

struct Prepared {
    Part whole;
    Bytes granule = 1;
    Bytes load = 0;        // largest sum of sizes at one instant, in granules
    i64 witness_time = 0;  // an instant of largest load, in the caller's time
};

// Largest unit that divides every size and every place where a resting buffer can lie.
inline Bytes granule_of(const Input& in, bool scaling) {
    Bytes unit = 0, aligned = 0;
    bool follows = true;
    for (i64 j = 0; j < in.count; ++j) {
        if (in.size[j] == 0) continue;
        unit = std::gcd(unit, in.size[j]);
        if (in.fixed[j] >= 0) unit = std::gcd(unit, in.fixed[j]);
        aligned = std::gcd(aligned, in.align[j]);
    }
    if (!scaling || unit == 0) return 1;
    for (i64 j = 0; j < in.count; ++j) follows = follows && unit % in.align[j] == 0;
    return follows ? unit : std::gcd(unit, aligned);
}

// Buffers of any bytes in an order that does not depend on the caller's: equal ones may change places.
inline std::vector<Index> canonical_order(const Input& in) {
    std::vector<Index> order;
    for (Index j = 0; j < in.count; ++j)
        if (in.size[j] > 0) order.push_back(j);
    const auto key = [&](Index j) { return std::tuple(in.start[j], in.end[j], in.size[j], in.align[j], in.fixed[j]); };
    std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return key(a) < key(b); });
    return order;
}

// Number the sections and translate every lifetime into them.
inline Prepared prepare(const Input& in, bool scaling, bool compression) {
    Prepared out;
    out.granule = granule_of(in, scaling);
    std::vector<Event> events;
    for (Index j = 0; j < in.count; ++j)
        if (in.size[j] > 0) events.push_back({in.start[j], true, j}), events.push_back({in.end[j], false, j});
    sort_events(events);
    const Sections sections(in.count, events, compression);
    Bytes load = 0, largest = -1;
    for (const auto [time, begins, j] : events) {
        load += begins ? in.size[j] : -in.size[j];
        if (load > largest) largest = load, out.witness_time = time;
    }
    out.load = std::max<Bytes>(0, largest) / out.granule;
    Part& part = out.whole;
    for (Index j : canonical_order(in)) {
        const Bytes align = std::max<Bytes>(1, in.align[j] / out.granule);
        part.size.push_back(in.size[j] / out.granule), part.align.push_back(align);
        part.fixed.push_back(in.fixed[j] < 0 ? -1 : in.fixed[j] / out.granule);
        part.start.push_back(sections.first[j]), part.end.push_back(sections.last[j]);
        part.born.push_back(in.start[j]), part.died.push_back(in.end[j]), part.id.push_back(j);
        part.num_sections = std::max(part.num_sections, sections.last[j]);
        part.plain = part.plain && align == 1 && in.fixed[j] < 0;
    }
    return out;
}

class Splitter {
   public:
    Splitter(bool zero_cuts, bool lifelong, std::vector<Offset>& offset)
        : zero_cuts_(zero_cuts), lifelong_(lifelong), offset_(offset) {}

    // Cut into independent parts; buffers that live through a whole part get the lowest addresses of it.
    std::vector<Part> split(Part whole) {
        i64 work_left = 64 * static_cast<i64>(whole.count()) + 1024;
        std::vector<Part> open, leaves;
        open.push_back(std::move(whole));
        while (!open.empty()) {
            Part part = std::move(open.back());
            open.pop_back();
            if (part.count() == 0) continue;
            work_left -= part.count();
            if (work_left > 0 && (cut(part, open) || bury(part, open))) continue;
            const auto loads = part.loads();
            part.load = *std::max_element(loads.begin(), loads.end());
            for (Index j = 0; j < part.count(); ++j)
                if (part.fixed[j] >= 0) part.load = std::max(part.load, part.fixed[j] + part.size[j]);
            leaves.push_back(std::move(part));
        }
        return leaves;
    }

   private:
    bool cut(const Part& part, std::vector<Part>& open) const {
        if (!zero_cuts_) return false;
        std::vector<Index> crossing(part.num_sections + 1, 0);
        for (Index j = 0; j < part.count(); ++j) ++crossing[part.start[j] + 1], --crossing[part.end[j]];
        std::vector<Section> first{0};
        std::vector<Index> piece(part.num_sections, 0);
        for (Section s = 1, alive = 0; s < part.num_sections; ++s) {
            alive += crossing[s];
            if (alive == 0) first.push_back(s);
            piece[s] = static_cast<Index>(first.size()) - 1;
        }
        if (first.size() == 1) return false;
        const std::size_t from = open.size();
        open.resize(from + first.size());
        for (Index j = 0; j < part.count(); ++j) {
            const Index at = piece[part.start[j]];
            open[from + at].push(part, j, first[at]);
        }
        for (std::size_t at = from; at < open.size(); ++at) open[at].base = part.base, open[at].plain = part.plain;
        return true;
    }

    bool bury(const Part& part, std::vector<Part>& open) {
        if (!lifelong_ || !part.plain) return false;
        const auto lifelong = [&](Index j) { return part.start[j] == 0 && part.end[j] == part.num_sections; };
        Part rest;
        rest.base = part.base;
        std::vector<Index> buried;
        for (Index j = 0; j < part.count(); ++j)
            if (lifelong(j)) buried.push_back(j);
        if (buried.empty()) return false;
        std::stable_sort(buried.begin(), buried.end(), [&](Index a, Index b) { return part.width(a) > part.width(b); });
        for (Index j : buried) offset_[part.id[j]] = rest.base, rest.base += part.size[j];
        for (Index j = 0; j < part.count(); ++j)
            if (!lifelong(j)) rest.push(part, j, 0);
        open.push_back(std::move(rest));
        return true;
    }

    bool zero_cuts_, lifelong_;
    std::vector<Offset>& offset_;
};

}  // namespace packer
