"""`bough chat`: on a terminal with prompt_toolkit, and line by line from pipes. No other command imports this package."""
