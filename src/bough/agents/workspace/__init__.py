"""The files of a conversation: the tools for them, and the tree that opens them by descriptors."""
