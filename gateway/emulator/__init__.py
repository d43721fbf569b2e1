"""An engine that is not there: what vLLM says on the wire, around `sim.EngineModel` in wall time.

Nothing in the gateway imports this folder. Its answers are words from a list; its *times* are the
model's, divided by `--speed`, and its own metrics are in the engine's (unscaled) seconds.
"""
