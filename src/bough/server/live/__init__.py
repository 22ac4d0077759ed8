"""What is pushed: events and pieces of text to streams and sockets."""
