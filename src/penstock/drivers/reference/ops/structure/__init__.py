"""What arranges, joins, cuts, picks and makes elements."""
