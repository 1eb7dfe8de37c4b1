"""What goes where: tasks and embedding tables over devices with limits and links."""
