"""`bough tasks`: one module reads tasks, one changes them."""
