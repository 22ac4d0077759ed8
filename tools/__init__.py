"""Programs for work on the repository. No part of the package imports them."""
