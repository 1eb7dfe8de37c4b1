"""What planners and judges both read: jobs with their plans, streams with their machines, plans and runs."""
