"""HTML of conversations: Jinja2 macros and the functions behind them, shared by the web page and the HTML export."""
