"""What planners and the judge both read: items, devices, links, and plans that say what goes where."""
