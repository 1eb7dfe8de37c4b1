// The eviction arena as a library of its own: simulators and tests load it, and it needs no torch.
#include "evict_calls.hpp"
