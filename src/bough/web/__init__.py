"""The web page of a server: screens as HTML, made by the functions that answer the API's routes."""
