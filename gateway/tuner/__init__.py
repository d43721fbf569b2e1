"""Which settings of the policy serve the recent traffic best: tried in simulation, off the loop."""
