"""The log of an open conversation: written, folded, shown to the model."""
