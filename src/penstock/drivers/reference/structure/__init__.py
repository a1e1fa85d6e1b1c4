"""Operations that arrange, join, slice, select and create elements."""
