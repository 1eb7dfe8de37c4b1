"""The allocator that torch calls: planned addresses, a limit, and a record of what was asked."""
