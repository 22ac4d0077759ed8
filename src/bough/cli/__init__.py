"""The command line: nouns with verbs, results on stdout, progress on stderr, documented exit codes."""
