"""bough: an agent runtime whose conversations fork like git branches."""
