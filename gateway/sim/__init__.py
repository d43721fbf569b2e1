"""The scheduler against a trace: engines that are arithmetic, time that jumps. No I/O but files."""
