"""`penstock cache`: the entries of a compilation cache, their validity, and why one missed."""
