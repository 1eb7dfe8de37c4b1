// Classes of evicted storages that are connected: a union-find that keeps the sum of costs per class.
//
// A storage that leaves a class takes its cost along; the class is not split (as in DTR, eq-classes).
// Each root also lists candidates for its border: resident storages next to a member, whose own cost
// of eviction depends on the class's sum. The list may name others too; it is cleaned when it is read.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "evict_pieces.hpp"

namespace tightrope_evict {

class Classes {
  public:
    std::int32_t make(Cost cost) {
        std::int32_t node;
        if (spare_.empty()) {
            node = static_cast<std::int32_t>(nodes_.size());
            nodes_.emplace_back();
        } else {
            node = spare_.back();
            spare_.pop_back();
        }
        Node& made = nodes_[node];
        made.parent = made.next = node;
        made.members = made.nodes = 1;
        made.sum = cost;
        made.border.clear();
        return node;
    }

    std::int32_t find(std::int32_t node) {
        while (nodes_[node].parent != node) {
            nodes_[node].parent = nodes_[nodes_[node].parent].parent;
            node = nodes_[node].parent;
        }
        return node;
    }

    Cost sum(std::int32_t root) const { return nodes_[root].sum; }
    std::vector<Id>& border(std::int32_t root) { return nodes_[root].border; }

    std::int32_t join(std::int32_t a, std::int32_t b) {
        a = find(a), b = find(b);
        if (a == b) return a;
        if (nodes_[a].nodes < nodes_[b].nodes) std::swap(a, b);
        Node &to = nodes_[a], &from = nodes_[b];
        from.parent = a;
        std::swap(to.next, from.next);  // two rings become one
        to.members += from.members;
        to.nodes += from.nodes;
        to.sum += from.sum;
        if (to.border.size() < from.border.size()) to.border.swap(from.border);
        to.border.insert(to.border.end(), from.border.begin(), from.border.end());
        from.border.clear();
        return a;
    }

    void add_cost(std::int32_t root, Cost cost) { nodes_[root].sum += cost; }

    // A member leaves; the nodes of a class without members are used again.
    void leave(std::int32_t node, Cost cost) {
        const std::int32_t root = find(node);
        nodes_[root].sum -= cost;
        if (--nodes_[root].members > 0) return;
        std::int32_t at = root;
        do {
            const std::int32_t next = nodes_[at].next;
            nodes_[at].border.clear();
            spare_.push_back(at);
            at = next;
        } while (at != root);
    }

  private:
    struct Node {
        std::int32_t parent = 0, next = 0;  // next: a ring through all nodes of the class
        std::int64_t members = 0, nodes = 0;
        Cost sum = 0;
        std::vector<Id> border;
    };
    std::vector<Node> nodes_;
    std::vector<std::int32_t> spare_;
};

}  // namespace tightrope_evict
