"""HTML of conversations for the web page and for exported files. Takes plain data; knows no server and no store."""
