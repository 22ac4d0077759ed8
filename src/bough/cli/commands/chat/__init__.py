"""`bough chat`: on a terminal with prompt_toolkit, from pipes line by line. No other command imports this."""
