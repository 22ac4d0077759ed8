"""`bough tasks`: `look` reads tasks, `change` changes them, `text` formats them."""
