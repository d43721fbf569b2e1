"""Workloads by name: seed -> workflows, all decided before the first call is sent."""
