"""What a rig could do with a swap tier: costs of swap and recompute, agents that fit, replays of recorded work."""
