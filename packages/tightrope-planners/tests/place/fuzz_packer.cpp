// Feed instances from standard input to the placer: built with sanitizers, they stop the program at the
// first bad access. Each record is a kind, a number of lists, and the lists with their lengths.
#include <cstdio>
#include <vector>

#include "packer.cpp"

namespace {

bool read(std::int64_t* values, std::size_t count) {
    return std::fread(values, sizeof(std::int64_t), count, stdin) == count;
}

}  // namespace

int main() {
    std::int64_t head[2], done = 0;
    for (; read(head, 2); ++done) {
        std::vector<std::vector<std::int64_t>> lists(head[1]);
        for (auto& list : lists) {
            std::int64_t length = 0;
            if (!read(&length, 1)) return 1;
            list.resize(length);
            if (!read(list.data(), list.size())) return 1;
        }
        const std::int64_t count = static_cast<std::int64_t>(lists[head[0] == 0 ? 1 : 6].size());
        std::vector<std::int64_t> offsets(count), results(5);
        if (head[0] == 0) {
            if (count == 0) continue;
            tightrope_pack(count, lists[1].data(), lists[2].data(), lists[3].data(), lists[4].data(),
                           lists[5].data(), lists[0].data(), offsets.data(), results.data());
        } else {
            std::vector<const std::int64_t*> columns;
            for (std::size_t at = 1; at < lists.size(); ++at) columns.push_back(lists[at].data());
            tightrope_pack_blocks(count, columns.data(), lists[0].data(), offsets.data(), results.data());
        }
    }
    std::printf("%lld\n", static_cast<long long>(done));
}
