"""Scripts for the papers' pictures and tables. They run from a checkout; the installed package omits them."""
