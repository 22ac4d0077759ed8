"""Data queries: tools of a data warehouse over DuckDB, SQL that is checked before it runs, and cases for both."""
