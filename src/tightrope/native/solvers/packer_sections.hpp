// Sections: spans of time between which the set of live buffers only shrinks, then grows.
#pragma once

#include "packer_model.hpp"

namespace packer {

struct Event {
    i64 time;
    bool begins;
    Index buffer;
};

inline void sort_events(std::vector<Event>& events) {
    std::sort(events.begin(), events.end(),
              [](const Event& a, const Event& b) { return a.time != b.time ? a.time < b.time : a.begins < b.begins; });
}

// First section and the one after the last, per buffer; without `compression` every time begins a section.
struct Sections {
    std::vector<Section> first, last;

    Sections(std::size_t count, const std::vector<Event>& sorted, bool compression) : first(count, 0), last(count, 0) {
        Section section = -1;
        bool growing = false;  // the last event was a beginning
        for (std::size_t at = 0; at < sorted.size(); ++at) {
            const auto [time, begins, j] = sorted[at];
            if (compression ? begins && !growing : at == 0 || time != sorted[at - 1].time) ++section;
            (begins ? first : last)[j] = section + (compression && !begins ? 1 : 0);
            growing = begins;
        }
    }
};

}  // namespace packer
