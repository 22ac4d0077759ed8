"""Live delivery of events and pieces of text to streams and sockets."""
