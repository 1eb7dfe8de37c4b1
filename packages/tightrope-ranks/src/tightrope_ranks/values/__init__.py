"""What planners and judges both read: work in stages with its joint plan, exchanges with their plans."""
