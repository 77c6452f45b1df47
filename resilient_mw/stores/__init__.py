"""F2: stores of what must outlive a request: in memory and in SQLite."""
