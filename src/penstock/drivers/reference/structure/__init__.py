"""Operations that arrange, join, cut, select and create elements."""
