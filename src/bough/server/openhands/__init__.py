"""The wire of OpenHands 1.58: its bodies, its events, its frames; nothing of ours imports it."""
