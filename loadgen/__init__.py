"""loadgen: open-loop load for OpenAI-compatible servers, with workflows and deadlines."""
