"""Many ranks: pipelines, their planner, their judge."""
