// Messages of an exchange of gradients by labels with dominance; see tightrope_ranks/compress/search.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace {
using i64 = std::int64_t;
constexpr double kFar = std::numeric_limits<double>::infinity();

struct Codec {
    double encode0, encode1, wire0, wire1, decode0, decode1;
    double encode(double x) const { return encode0 + encode1 * x; }
    double wire(double x) const { return wire0 + wire1 * x; }
    double decode(double x) const { return decode0 + decode1 * x; }
};

// clock: processor; work: clock and all decodes so far; queue: its clock; tail: when what was sent is decoded.
struct Label {
    double clock, work, queue, tail;
    i64 sent;
    int parent, codec, at;
    double least;  // no completion is faster
};

// Seconds of messages with x bytes in all, at least: one message of the best codec, as costs are affine.
struct Least {
    std::vector<std::pair<double, double>> lines;
    void take(double fixed, double rate) { lines.emplace_back(fixed, rate); }
    double operator()(double x) const {
        double least = kFar;
        for (const auto& [fixed, rate] : lines) least = std::min(least, fixed + rate * x);
        return least;
    }
};
constexpr int kWeights = 7;
constexpr std::size_t kMostLabels = 2'000'000;

struct Search {
    i64 num, codecs, limit, most;
    const double *compute, *sizes;
    const Codec* codec;
    const i64* sent;
    std::vector<double> ready, bytes;  // sums over the first i gradients
    std::vector<std::vector<i64>> total;
    std::vector<i64> cheapest;  // bytes sent for the gradients from i on, at least
    Least encode, wire, decode, both, mixed[kWeights];
    i64 work = 0;  // comparisons
    std::vector<Label> labels;
    std::vector<std::vector<int>> front;
    double upper, gap, skipped = kFar;
    int best = -1;

    static double weight(int w) { return (w + 1.0) / (kWeights + 1); }

    void prepare() {
        ready.assign(num + 1, 0), bytes.assign(num + 1, 0), cheapest.assign(num + 1, 0);
        total.assign(codecs, std::vector<i64>(num + 1, 0));
        for (i64 i = 0; i < num; ++i) {
            ready[i + 1] = ready[i] + compute[i], bytes[i + 1] = bytes[i] + sizes[i];
            for (i64 c = 0; c < codecs; ++c) total[c][i + 1] = total[c][i] + sent[c * num + i];
        }
        for (i64 i = num; i-- > 0;) {
            i64 least = sent[i];
            for (i64 c = 1; c < codecs; ++c) least = std::min(least, sent[c * num + i]);
            cheapest[i] = cheapest[i + 1] + least;
        }
        for (i64 c = 0; c < codecs; ++c) {
            const Codec& k = codec[c];
            encode.take(k.encode0, k.encode1), wire.take(k.wire0, k.wire1), decode.take(k.decode0, k.decode1);
            both.take(k.encode0 + k.decode0, k.encode1 + k.decode1);
            for (int w = 0; w < kWeights; ++w) {
                const double p = weight(w), q = 1 - p;
                mixed[w].take(p * (k.encode0 + k.decode0) + q * k.wire0, p * (k.encode1 + k.decode1) + q * k.wire1);
            }
        }
    }

    // Raise what cannot matter, so that more labels dominate others; then the least time of a completion.
    void settle(Label& one) const {
        const i64 i = one.at;
        if (i == num) {
            one.least = std::max(one.work, one.tail);
            return;
        }
        const double next = one.clock + compute[i] + encode(sizes[i]);
        one.queue = std::max(one.queue, next);
        one.tail = std::max(one.tail, one.queue + wire(sizes[i]));
        const double rest = bytes[num] - bytes[i], backward = ready[num] - ready[i];
        const double last = one.clock + backward + encode(rest) + wire(sizes[num - 1]) + decode(sizes[num - 1]);
        one.least = std::max({one.work + backward + both(rest), one.tail + decode(rest),
                              one.queue + wire(rest) + decode(sizes[num - 1]), last});
        if (codecs == 1) return;
        // What one codec saves in the queue it takes of the processor: weighted sums bound both at once.
        for (int w = 0; w < kWeights; ++w) {
            const double p = weight(w), q = 1 - p;
            one.least = std::max(one.least, p * (one.work + backward) + q * (one.queue + decode(sizes[num - 1])) +
                                                mixed[w](rest));
        }
    }

    bool covers(const Label& a, const Label& b, double close) const {
        return a.clock <= b.clock + close && a.work <= b.work + close && a.queue <= b.queue + close &&
               a.tail <= b.tail + close && (limit < 0 || a.sent <= b.sent);
    }

    void insert(const Label& one, i64 width) {
        auto& here = front[one.at];
        const double close = upper < kFar ? upper * 1e-14 : 0;
        work += static_cast<i64>(here.size());
        for (std::size_t k = 0; k < here.size(); ++k)
            if (covers(labels[here[k]], one, close)) {
                if (k > 8) std::swap(here[k], here[k / 2]);
                return;
            }
        std::size_t kept = 0;
        for (int other : here)
            if (!covers(one, labels[other], 0)) here[kept++] = other;
        here.resize(kept);
        if (static_cast<i64>(here.size()) >= width) {
            auto worst = std::max_element(here.begin(), here.end(), [&](int a, int b) {
                return labels[a].least < labels[b].least;
            });
            if (labels[*worst].least <= one.least) return;
            *worst = static_cast<int>(labels.size());
        } else {
            here.push_back(static_cast<int>(labels.size()));
        }
        labels.push_back(one);
    }

    // False where it takes too much. A beam keeps `width` labels per gradient, and proves nothing.
    bool run(double before, i64 width) {
        labels.clear(), front.assign(num + 1, {}), best = -1;
        Label first{before, before, 0, 0, 0, -1, -1, 0, 0};
        settle(first);
        labels.push_back(first);
        front[0].push_back(0);
        for (i64 i = 0; i < num; ++i) {
            for (int number : front[i]) {
                if (labels[number].least >= upper * (1 - gap)) continue;
                for (i64 j = i + 1; j <= num; ++j)
                    for (i64 c = 0; c < codecs; ++c) extend(number, j, static_cast<int>(c), width);
                work += (num - i) * codecs;
                if (work > most || labels.size() > kMostLabels) return false;
            }
        }
        for (int number : front[num])
            if (labels[number].least < upper) upper = labels[number].least, best = number;
        return true;
    }

    void extend(int number, i64 j, int c, i64 width) {
        const Label& from = labels[number];
        const Codec& k = codec[c];
        const double x = bytes[j] - bytes[from.at];
        Label one = from;
        one.parent = number, one.codec = c, one.at = static_cast<int>(j);
        one.sent += total[c][j] - total[c][from.at];
        if (limit >= 0 && one.sent + cheapest[j] > limit) return;
        const double backward = ready[j] - ready[from.at];
        one.clock += backward + k.encode(x);
        one.work += backward + k.encode(x) + k.decode(x);
        one.queue = std::max(from.queue, one.clock) + k.wire(x);
        one.tail = std::max(from.tail, one.queue) + k.decode(x);
        settle(one);
        if (one.least >= upper * (1 - gap)) return;
        if (one.at == num && one.least < upper && width == std::numeric_limits<i64>::max()) {
            // a better plan: later labels are measured against it
            front[num].clear();
            front[num].push_back(static_cast<int>(labels.size()));
            labels.push_back(one);
            upper = std::nextafter(one.least, kFar);
            return;
        }
        insert(one, width);
    }
};
}  // namespace

// Returns the number of messages, 0 where nothing beats `upper`, -1 where it would take more than `most` comparisons.
extern "C" i64 tightrope_fusion(i64 num, i64 codecs, const double* compute, const double* sizes,
                                const double* costs, const i64* sent, double before, i64 limit, double upper,
                                double gap, i64 width, i64 most, i64* ends, i64* chosen) {
    Search search{};
    search.num = num, search.codecs = codecs, search.limit = limit, search.most = most;
    search.compute = compute, search.sizes = sizes, search.sent = sent;
    search.codec = reinterpret_cast<const Codec*>(costs);
    search.upper = upper, search.gap = gap;
    search.prepare();
    if (!search.run(before, width > 0 ? width : std::numeric_limits<i64>::max())) return -1;
    if (search.best < 0) return 0;
    std::vector<Label> path;
    for (int at = search.best; search.labels[at].parent >= 0; at = search.labels[at].parent)
        path.push_back(search.labels[at]);
    std::reverse(path.begin(), path.end());
    for (std::size_t k = 0; k < path.size(); ++k) ends[k] = path[k].at, chosen[k] = path[k].codec;
    return static_cast<i64>(path.size());
}
